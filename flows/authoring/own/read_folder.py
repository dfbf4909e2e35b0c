"""Reads a person's folder: runs as a program of its own, with that person's rights, and prints JSON.

It has nothing but the standard library, for it comes to its Python by standard input. No link is followed, on the way
to the folder or below it; nothing but plain files is opened; files, bytes and depth are bounded.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import sys

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Refused(Exception):
    """Something in the folder that is no part of a recipe: its path, and what is wrong with it."""


def opened(path: str) -> int:
    """The folder at an absolute path, opened one name after the other, so that nobody can put a link in between."""
    names = [name for name in path.split("/") if name]
    if {".", ".."} & {*names}:
        raise Refused(path, "its path has . or .. in it")
    here = os.open("/", FOLDER)
    for name in names:
        try:
            below = os.open(name, FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def read(folder: int, files: int, size: int, depth: int) -> dict[str, bytes]:
    """Path → content of all files below an open folder, which is closed in the end.

    Raises:
        Refused: there are more, they are larger or deeper, or something isn't a plain file.
        OSError: something can't be read.
    """
    with contextlib.ExitStack() as folders:
        folders.callback(os.close, folder)
        return _read(folder, files, size, depth, folders)


def _read(folder: int, files: int, size: int, depth: int, folders: contextlib.ExitStack) -> dict[str, bytes]:
    """As `read`; `folders` closes those that are opened here."""
    contents: dict[str, bytes] = {}
    pending = [("", folder)]
    looked_at = 0
    while pending:
        above, here = pending.pop()
        with os.scandir(here) as entries:
            names = []
            for entry in entries:
                looked_at += 1
                if looked_at > files:
                    raise Refused(above or ".", f"there are more than {files} files and folders")
                names.append(entry.name)
        for name in sorted(name for name in names if not name.startswith(".")):
            path = f"{above}{name}"
            kind = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                if path.count("/") + 1 >= depth:
                    raise Refused(path, f"it lies deeper than {depth} folders")
                below = os.open(name, FOLDER, dir_fd=here)
                folders.callback(os.close, below)
                pending.append((f"{path}/", below))
            elif not stat.S_ISREG(kind):
                raise Refused(path, "it is no plain file and no folder, but a link or something else")
            else:
                contents[path] = _content(name, path, here, size)
                size -= len(contents[path])
    return contents


def _content(name: str, path: str, folder: int, most: int) -> bytes:
    with open(os.open(name, FILE, dir_fd=folder), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Refused(path, "it is no plain file")
        content = file.read(most + 1)
    if len(content) > most:
        raise Refused(path, "with it the files are larger than they may be together")
    return content


def main() -> None:
    """Read what the first argument says, as JSON."""
    request = json.loads(sys.argv[1])
    try:
        contents = read(opened(request["path"]), request["files"], request["size"], request["depth"])
    except Refused as refused:
        print(json.dumps({"refused": list(refused.args)}))
    except OSError as error:
        print(json.dumps({"refused": [str(error.filename or request["path"]), error.strerror]}))
    else:
        print(json.dumps({"files": {path: base64.b64encode(text).decode() for path, text in contents.items()}}))


if __name__ == "__main__":
    main()
