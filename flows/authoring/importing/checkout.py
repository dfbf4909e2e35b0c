"""The files of a checkout of workbench-images, as it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from flows.authoring.importing.report import Adoption
from flows.catalog.lineage import NUMBERED
from flows.core.documents import bounds


def numbered(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Number, name and folder of each recipe, in the order of menus."""
    folders = [(match, path) for path in folder.iterdir() if path.is_dir() and (match := NUMBERED.fullmatch(path.name))]
    for match, path in sorted(folders, key=lambda found: int(found[0][1])):
        yield match[1], match[2], path


def text_in(file: Path) -> str:
    """The text of a file."""
    return bounds.read_bytes(file, bounds.TEXT).decode(errors="replace")


def lines_in(file: Path) -> list[str]:
    """The lines of a file; none where it is missing."""
    try:
        return text_in(file).splitlines()
    except OSError:
        return []


def first_line(file: Path) -> str:
    """The first line of a file that says something; empty: none."""
    return next((line.strip() for line in lines_in(file) if line.strip()), "")


def names_in(file: Path) -> list[str]:
    """The names in a list of packages, each once, without comments."""
    return list(dict.fromkeys(name for line in lines_in(file) if (name := line.partition("#")[0].strip())))


def containerfiles(paths: Iterable[Path]) -> list[Path]:
    """The Containerfiles among some paths."""
    return sorted(path for path in paths if path.name in ("Containerfile", "Dockerfile") and path.is_file())


THEIR_HOME, HOME = "/opt/app-root/src", "/home/dev"


def at_home(text: str, place: str, made: Adoption) -> None:
    """Note where a snippet names their home."""
    for line, words in enumerate(text.splitlines(), 1):
        if THEIR_HOME in words:
            made.note(f"{place}:{line}", f"{THEIR_HOME} is {HOME} here: {words.strip()}")
