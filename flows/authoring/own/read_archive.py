"""Reads an archive with a person's bundle (tar, tar.gz or zip), in a process that may do nothing else; prints JSON.

A program of its own, without a module outside of the standard library. Nothing of the archive is written anywhere. The
archive, its content, the number of its members, memory and time are bounded before any of it is believed.
"""

from __future__ import annotations

import base64
import io
import json
import resource
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MEMORY, SECONDS = 512 << 20, 10
GZIP, ZIP = b"\x1f\x8b", b"PK"
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others take memory by what the archive says
_ENCRYPTED = 1
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, MemoryError)


class Refused(Exception):
    """Something in the archive that is no part of a recipe: its name, and what is wrong with it."""


class NoArchive(Exception):
    """It isn't an archive, or it is broken."""


@dataclass(frozen=True)
class Member:
    """An entry of an archive.

    Attributes:
        name: as the archive has it.
        is_folder: it is a folder.
        is_file: it is a plain file: no link, no device, and without holes.
        content: its first bytes, so many.
    """

    name: str
    is_folder: bool
    is_file: bool
    content: Callable[[int], bytes]


def read(content: bytes, files: int, size: int, depth: int) -> dict[str, bytes]:
    """Path → content of all plain files of an archive; a folder that is around all of them is left out.

    Raises:
        Refused: there are more members, they are larger or deeper, or something isn't a plain file.
        NoArchive: it can't be read.
    """
    try:
        contents = _read(content, files, size)
    except _BROKEN as error:
        raise NoArchive(str(error)) from None
    return _checked_depth(_without_one_folder(contents), depth)


def _read(content: bytes, files: int, size: int) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for number, member in enumerate(_members(content, 4 * size), start=1):
        if number > files:
            raise Refused(".", f"there are more than {files} files and folders")
        parts = _parts(member.name)
        if member.is_folder or not parts or any(part.startswith(".") for part in parts) or parts[0] == "__MACOSX":
            continue
        if not member.is_file:
            raise Refused(member.name, "it is no plain file and no folder, but a link or something else")
        path = "/".join(parts)
        if path in contents:
            raise Refused(path, "the archive has it twice")
        contents[path] = member.content(size + 1)
        size -= len(contents[path])
        if size < 0:
            raise Refused(path, "with it the files are larger than they may be together")
    return contents


def _parts(name: str) -> list[str]:
    """The names on the way to a member, which lead nowhere but down."""
    if not name.isprintable():
        raise Refused(name, "its name has a character that isn't seen")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\\" in name:
        raise Refused(name, "its name leads out of the folder")
    return parts


def _without_one_folder(contents: dict[str, bytes]) -> dict[str, bytes]:
    """Archives of a folder by its name have that in front of all paths."""
    first = {path.partition("/")[0] for path in contents}
    if len(first) != 1 or any("/" not in path for path in contents):
        return contents
    return {path.partition("/")[2]: text for path, text in contents.items()}


def _checked_depth(contents: dict[str, bytes], depth: int) -> dict[str, bytes]:
    for path in contents:
        if path.count("/") >= depth:
            raise Refused(path, f"it lies deeper than {depth} folders")
    return contents


def _members(content: bytes, most: int) -> Iterator[Member]:
    if content.startswith(ZIP):
        yield from _zipped(content)
    else:
        yield from _tarred(_unpacked(content, most) if content.startswith(GZIP) else content)


def _unpacked(content: bytes, most: int) -> bytes:
    unpacked = zlib.decompressobj(wbits=31).decompress(content, most + 1)
    if len(unpacked) > most:
        raise Refused(".", f"unpacked it has more than {most} bytes")
    return unpacked


def _tarred(content: bytes) -> Iterator[Member]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in tar:
            yield Member(member.name, member.isdir(), member.isreg() and member.sparse is None, _from_tar(tar, member))


def _from_tar(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[int], bytes]:
    def content(most: int) -> bytes:
        file = tar.extractfile(member)
        return file.read(most) if file else b""

    return content


def _zipped(content: bytes) -> Iterator[Member]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG) and member.compress_type in _PLAIN and not member.flag_bits & _ENCRYPTED
            yield Member(member.filename, member.is_dir(), plain, _from_zip(archive, member))


def _from_zip(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Callable[[int], bytes]:
    def content(most: int) -> bytes:
        with archive.open(member) as file:
            return file.read(most)

    return content


def main() -> None:
    """Read the archive on standard input by what the first argument says, as JSON."""
    request = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    content = sys.stdin.buffer.read()
    try:
        contents = read(content, request["files"], request["size"], request["depth"])
    except Refused as refused:
        print(json.dumps({"refused": [str(argument)[:200] for argument in refused.args]}))
    except NoArchive as broken:
        print(json.dumps({"broken": str(broken)[:200]}))
    else:
        print(json.dumps({"files": {path: base64.b64encode(text).decode() for path, text in contents.items()}}))


if __name__ == "__main__":
    main()
