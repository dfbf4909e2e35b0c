"""Account for each item of a checkout of workbench-images: it came over, or it stands in the report."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from flows.authoring.importing.report import REPORT, Adoption
from flows.core.formatting import on_a_line

ITEM = re.compile(rb"item[a-z]+\d+")
# A note of a file that is in the catalog says nothing of what it lost.
CAME = re.compile(
    r"carried over as it is|came over|has to be locked|written anew|(?<!another one )is called \w+ here|got that of"
)
PARTS = ("base", "cuda-layer", "recipes", "snippets")


def files(root: Path) -> Iterator[Path]:
    """All that a checkout has in the folders of its parts, links as they are; folders where they are empty."""
    for part in PARTS:
        for folder, names, inner in os.walk(root / part):
            here = Path(folder)
            yield from (here / name for name in inner)
            yield from (here / name for name in names if (here / name).is_symlink())
            if not names and not inner:
                yield here


def about(made: Adoption, path: str) -> list[tuple[int, str]]:
    """The notes about a file or a folder above it: the line, or none of them, and all of the text."""
    told, path = list[tuple[int, str]](), on_a_line(path)
    for note in made.notes:
        place, _, text = note.partition(": ")
        where, _, line = place.rpartition(":")
        exact = (where, int(line)) if where and line.isdecimal() else (place, 0)
        if path == exact[0] or (exact[0].count("/") and path.startswith(f"{exact[0]}/")):
            told.append((exact[1], text))
    return told


def lost(root: Path, made: Adoption) -> Iterator[str]:
    """The items that neither came over nor stand in the report where they are."""
    came = b"\n".join(file.read_bytes() for file in made.catalog.rglob("*") if file.is_file() and file.name != REPORT)
    recipes = {recipe.name: recipe for recipe in made.recipes}
    for file in files(root):
        path = file.relative_to(root).as_posix()
        notes = about(made, path)
        whole = any(line == 0 and not (file.is_file() and CAME.search(text)) for line, text in notes) or (
            path.split("/")[1] in recipes and path.count("/") == 1
        )
        if not file.is_file() or not file.resolve().is_relative_to(root.resolve()):
            if not whole:
                yield path
            continue
        if file.stat().st_size > 1 << 20:
            if not whole:
                yield path
            continue
        for number, line in enumerate(re.split(rb"\r\n|\r|\n", file.read_bytes()), 1):
            for item in ITEM.findall(line):
                there = any(0 < at <= number and item.decode() in text for at, text in notes)
                if not (there or whole or re.search(rb"\b%s\b" % item, came)):
                    yield f"{path}:{number}: {item.decode()}"
