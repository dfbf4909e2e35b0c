"""A checkout of workbench-images as it is read: regular files that lie in it, each one accounted for."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from flows.authoring.importing.report import Adoption
from flows.catalog.lineage import NUMBERED
from flows.catalog.tree import ENTRIES
from flows.core.documents import bounds
from flows.core.errors import RefitError

# The folders that an import looks at.
PARTS = ("base", "cuda-layer", "recipes", "snippets")
_CONTAINERFILES = ("Containerfile", "Dockerfile")
# Folders that an import looks into one by one, and how many of them there may be in each.
_EACH, _MOST = ("recipes", "snippets/bundles", "snippets/ides"), 500


class Checkout:
    """The files of a checkout, by their path in it. Trouble with one is noted, and it counts as empty.

    Attributes:
        root: where it is.
        files: the paths of all files below `PARTS`, links to files of it among them.

    Raises:
        RefitError: it is none, can't be read, or has more files than a catalog may have.
    """

    def __init__(self, root: Path, adoption: Adoption) -> None:
        self.root, self._made, self._top = root, adoption, os.path.realpath(root)
        self._accounted, self._troubled = set[str](), set[str]()
        self._folders: dict[str, list[str]] = {}
        try:
            self._beside = sorted(entry.name for entry in os.scandir(root) if entry.name not in (*PARTS, ".git"))
            self.files = tuple(sorted(self._walk()))
            self._known = frozenset(self.files)
        except OSError as error:
            raise RefitError(
                f"{root} can't be read.",
                why=str(error),
                hint="check that the folder is there, and that you may read it.",
            ) from None
        if "snippets/bundles" not in self._folders:
            raise RefitError(
                f"{root} is no checkout of workbench-images.",
                why="It has no folder snippets/bundles.",
                hint="name the folder into which it was checked out.",
            )
        for folder in _EACH:
            if len(self.folders(folder)) > _MOST:
                raise RefitError(f"{root / folder} has more than {_MOST} folders.", hint="import a part of them.")

    def _own(self, path: Path) -> bool:
        """Whether what has this path lies in the checkout, wherever links lead."""
        return f"{os.path.realpath(self.root / path)}/".startswith(f"{self._top}/")

    def _walk(self) -> Iterator[str]:
        pending, count = [part for part in PARTS if os.path.lexists(self.root / part)], 0
        for part in tuple(pending):
            if (self.root / part).is_symlink() or not (self.root / part).is_dir():
                self._made.note(part, "was left out: it is a link or no folder")
                pending.remove(part)
        while pending:
            folder = pending.pop()
            self._folders[folder] = []
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    count += 1
                    path = f"{folder}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        self._folders[folder].append(entry.name)
                        pending.append(path)
                    elif self._is_file(entry, path):
                        yield path
            if count > ENTRIES:
                raise RefitError(
                    f"{self.root} has more than {ENTRIES:,} files and folders.",
                    hint="take a fresh clone, without build output beside it.",
                )

    def _is_file(self, entry: os.DirEntry[str], path: str) -> bool:
        if entry.is_file(follow_symlinks=False):
            return True
        if not entry.is_symlink():
            what = "it is no file: a FIFO, a socket or a device"
        elif not self._own(Path(path)):
            what = f"it is a link that leads out of the checkout, to {Path(entry.path).readlink()}"
        elif Path(entry.path).is_file():  # a link that leads round in a circle is none, and no error
            return True
        else:
            what = f"it is a link to a folder, to nothing or to itself: {Path(entry.path).readlink()}"
        self._made.note(path, f"was left out: {what}")
        return False

    def below(self, folder: str) -> tuple[str, ...]:
        """The paths of all files below a folder."""
        begin, end = (bisect_left(self.files, f"{folder}{mark}") for mark in "/0")  # in ASCII, 0 comes after /
        return self.files[begin:end]

    def within(self, folder: str) -> tuple[str, ...]:
        """The paths of the files that a folder has itself."""
        return tuple(path for path in self.below(folder) if "/" not in path[len(folder) + 1 :])

    def folders(self, folder: str) -> tuple[str, ...]:
        """The names of the folders in a folder, also of those without files."""
        return tuple(sorted(self._folders.get(folder, ())))

    def containerfiles(self, folder: str) -> tuple[str, ...]:
        """The Containerfiles below a folder."""
        return tuple(path for path in self.below(folder) if PurePosixPath(path).name in _CONTAINERFILES)

    def text(self, path: str, limit: int = bounds.TEXT) -> str:
        """The text of a file; empty where it is missing, or can't be taken for a text."""
        content = self.content(path, limit)
        text = content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
        if "\ufffd" in text and b"\xef\xbf\xbd" not in content:
            line = next(number for number, each in enumerate(text.split("\n"), 1) if "\ufffd" in each)
            self._trouble(f"{path}:{line}", "is not UTF-8: unreadable bytes are replaced by \ufffd")
        return text

    def content(self, path: str, limit: int = bounds.TEXT) -> bytes:
        """The bytes of a file; none where it is missing, too large, or can't be read."""
        if path not in self._known:
            return b""
        try:
            return bounds.read_bytes(self.root / path, limit, self._top)
        except OSError as error:
            self._trouble(path, f"was left out: {error}")
            return b""

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self._known

    def readable(self, path: str) -> bool:
        """Whether reading it had no trouble so far."""
        return path in self._known and path not in self._troubled

    def _trouble(self, place: str, what: str) -> None:
        if place not in self._troubled:
            self._troubled.add(place)
            self._accounted.add(place)
            self._made.note(place, what)

    def account(self, *paths: str) -> None:
        """Take note that the report or the catalog has these."""
        self._accounted.update(paths)

    def tell_the_rest(self) -> None:
        """Note every file that nothing has accounted for, and what wasn't looked at."""
        for path in self.files:
            if path not in self._accounted:
                self._made.note(path, "was left out: nothing reads it")
        if self._beside:
            self._made.note("(beside these folders)", f"was not looked at: {', '.join(self._beside)}")


def numbered(checkout: Checkout, folder: str) -> Iterator[tuple[str, str, str]]:
    """Number, name and path of each recipe in a folder, in the order of menus."""
    matches = [match for name in checkout.folders(folder) if (match := NUMBERED.fullmatch(name))]
    for match in sorted(matches, key=lambda match: (int(match[1]), match[2])):
        yield match[1], match[2], f"{folder}/{match[0]}"


def first_line(text: str) -> str:
    """The first line of a text that says something; empty: none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def names_in(text: str) -> dict[str, int]:
    """The names in a list of packages, one a line, and the line where each stands first; comments are none."""
    named: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if name := line.partition("#")[0].strip():
            named.setdefault(name, number)
    return named


def packages_among(names: Iterable[str]) -> list[str]:
    """Those that can be names of system packages."""
    return [name for name in names if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,199}", name)]
