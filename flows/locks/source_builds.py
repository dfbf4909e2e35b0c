"""Which Python packages of a bundle are taken as source and built, for want of a wheel: `builder/sources.txt`.

`builder/environment.txt` may have variables beside it, with which they are asked for what they need, and built.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from packaging.utils import NormalizedName, canonicalize_name

from flows.core.documents import Mistake, Mistakes, bounds, unreadable

# The category of what such packages are built with. It is installed where they are built, and in no image.
BUILDER = "builder"

# Package → the file and the line that name it.
Built = Mapping[NormalizedName, tuple[Path, int]]

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")


def sources_file(bundle: Path) -> Path:
    """The file in a bundle's folder that names them, one a line."""
    return bundle / "builder" / "sources.txt"


def read(bundles: Iterable[Path], pipfile: Path, packages: Mapping[str, Collection[str]]) -> Built:
    """The packages that some bundles, which are locked as one, take as source.

    Args:
        bundles: their folders.
        pipfile: the Pipfile of the last one, to be named where it lacks something.
        packages: category → packages that their Pipfiles ask for.

    Raises:
        Mistakes: these files ask for something impossible.
    """
    files = [file for bundle in bundles if (file := sources_file(bundle)).exists()]
    sources: dict[NormalizedName, tuple[Path, int]] = {}
    mistakes = [mistake for file in files for mistake in _read(file, sources, packages.get(BUILDER, ()))]
    if sources and BUILDER not in packages:
        hint = "let it ask for what those in builder/sources.txt are built with, e.g. setuptools"
        mistakes.append(Mistake(pipfile, 1, f"it has no section [{BUILDER}]", hint))
    if mistakes:
        raise Mistakes(mistakes)
    return sources


def environment(bundles: Iterable[Path]) -> dict[str, str]:
    """The variables of some bundles (their folders), which are locked as one; where two set one, the later holds.

    Raises:
        Mistakes: a line sets none.
    """
    variables: dict[str, str] = {}
    mistakes: list[Mistake] = []
    for file in (bundle / "builder" / "environment.txt" for bundle in bundles):
        for number, line in enumerate(_lines(file, mistakes) if file.exists() else (), start=1):
            written = line.partition("#")[0].strip()
            if match := _VARIABLE.fullmatch(written):
                variables[match[1]] = match[2]
            elif written:
                mistakes.append(Mistake(file, number, f"{written!r} sets no variable", "write NAME=value, one a line"))
    if mistakes:
        raise Mistakes(mistakes)
    return variables


def _lines(file: Path, mistakes: list[Mistake]) -> list[str]:
    try:
        return bounds.read_text(file).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        mistakes.append(unreadable(file, error, "write it in UTF-8"))
        return []


def _read(file: Path, sources: dict[NormalizedName, tuple[Path, int]], tools: Collection[str]) -> Iterator[Mistake]:
    """Add the packages of a file to those that were found, and tell what is wrong with it."""
    normal = {canonicalize_name(tool) for tool in tools}
    unread: list[Mistake] = []
    lines = _lines(file, unread)
    yield from unread
    for number, line in enumerate(lines, start=1):
        written = line.partition("#")[0].strip()
        name = canonicalize_name(written)
        if written and not _NAME.fullmatch(written):
            yield Mistake(file, number, f"{written!r} is not the name of a package", "one name a line, without version")
        elif name in normal:
            what = f"{written} is in [{BUILDER}], where every package needs a wheel"
            yield Mistake(file, number, what, "take it out of one of the two")
        elif name in sources:
            file_there, line_there = sources[name]
            yield Mistake(file, number, f"{written} stands already in {file_there}:{line_there}", "keep one of them")
        elif written:
            sources[name] = file, number
