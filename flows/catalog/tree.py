"""The files of a catalog: folders, files, and links that stay in it. A catalog is data; here stands what it may hold.

A link that leads out of it would bring a file of this machine into an image, and be another one on the next machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from flows.core.documents import Mistake, Mistakes, bounds, unreadable
from flows.core.errors import RefitError
from flows.core.settings.default_folders import SHIPPED_CATALOG

# The folders of a catalog.
PARTS = ("base", "bundles", "ides", "snippets", "releases")
ENTRIES = 100_000  # files and folders that it may have
TOGETHER = 256_000_000  # bytes that the files of one folder may have which go into an image

_NEEDED = ["base", "bundles", "ides", "releases"]
_COPY = "put a copy of it here"
_IMPORTS = re.compile(r'\{% *(?:import|include|extends|from) "([^"]+)"')
_NPM = re.compile(r"ides/[^/]+/npm/")


class NoCatalog(RefitError):
    """Where a catalog should be is none."""

    exit_code = 2


def require(root: Path) -> None:
    """Refuse a folder that is no catalog, or not a whole one.

    Raises:
        NoCatalog: it is not there, or lacks one of its folders.
    """
    missing = [part for part in _NEEDED if not (root / part).is_dir()]
    if not root.is_dir():
        why = "There is no such folder." if not root.exists() else "That is no folder."
    elif missing == _NEEDED:
        why = f"It has none of the folders {', '.join(_NEEDED)}."
    elif missing:
        why = f"It has a part of one, and lacks {', '.join(f'{part}/' for part in missing)}."
    else:
        return
    raise NoCatalog(
        f"{root} is no catalog.",
        why=why,
        hint="go to the folder with base/, bundles/, ides/, snippets/ and releases/, or let REFIT_CATALOG name it.",
    )


def mistakes(root: Path) -> Iterator[Mistake]:
    """Things in a catalog that are no file, no folder, and no link to one of its own."""
    top, count = f"{os.path.realpath(root)}/", 0
    pending = [root / part for part in PARTS if os.path.lexists(root / part)]
    for part in tuple(pending):
        if part.is_symlink():
            yield from _link(part, top)
            pending.remove(part)
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_symlink():
                    yield from _link(Path(entry.path), top)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    yield Mistake(Path(entry.path), 0, "this is no file: a FIFO, a socket or a device", "take it out")
        if count > ENTRIES:
            yield Mistake(root, 0, f"this catalog has more than {ENTRIES:,} files and folders")
            return


def _link(path: Path, top: str) -> Iterator[Mistake]:
    target = os.path.realpath(path)
    if not f"{target}/".startswith(top):
        yield Mistake(path, 0, f"this link leads out of the catalog, to {target}", _COPY)
    elif not os.path.isfile(target) and not os.path.isdir(target):  # noqa: PTH112, PTH113 - beside realpath
        yield Mistake(path, 0, "this link leads to no file", "take it out")


def read_files(folder: Path, root: Path) -> dict[str, bytes]:
    """A recipe's files by their path in the build context (`files/…`), all of them in the catalog below `root`.

    Raises:
        Mistakes: those that can't be read, are none, lie elsewhere, or are too large.
    """
    top, contents, wrong = os.path.realpath(root), dict[str, bytes](), list[Mistake]()
    remaining = TOGETHER
    for file in sorted(folder.rglob("*")):
        if file.is_dir():
            continue
        try:
            content = bounds.read_bytes(file, min(bounds.COPIED, remaining), top)
        except OSError as error:
            wrong.append(unreadable(file, error))
        else:
            contents[file.relative_to(folder.parent).as_posix()] = content
            remaining -= len(content)
    if wrong:
        raise Mistakes(wrong)
    return contents


def copy(source: Path, target: Path, root: Path) -> None:
    """Copy a folder of the catalog, or of the checkout, below `root`, with what may be in one and nothing else.

    Raises:
        Mistakes: it has something else.
        OSError: it can't be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name, content in read_files(source, root).items():
        file = target / Path(name).relative_to(source.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod((source / Path(name).relative_to(source.name)).stat().st_mode & 0o777)


@cache
def shipped_texts(pattern: str) -> frozenset[str]:
    """The texts of these files of the catalog that comes with Refit."""
    return frozenset(file.read_text(encoding="utf-8") for file in SHIPPED_CATALOG.glob(pattern))


def is_shipped(name: str, texts: Mapping[str, str]) -> bool:
    """Whether a template of a catalog, and each that it imports, has the text that came with Refit.

    Args:
        name: its path below the catalog.
        texts: the templates of the catalog by their paths.
    """
    todo, seen = [name], set[str]()
    while todo:
        if (path := todo.pop()) in seen:
            continue
        seen.add(path)
        text = texts.get(path)
        # Only a text of Refit's is searched: it names those that it imports in full.
        if text is None or text not in shipped_texts(_NPM.sub("ides/*/npm/", path)):
            return False
        todo += _IMPORTS.findall(text)
    return True
