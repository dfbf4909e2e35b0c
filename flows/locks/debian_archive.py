"""A Debian archive by its own indexes: which packages of one suite it offers, and in which versions."""

from __future__ import annotations

import hashlib
import logging
import lzma
import re
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import httpx

from flows.core.atomic_files import write_whole_of
from flows.core.authorities import authorities
from flows.core.documents import Document
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.lazily import lazily
from flows.core.outside import Bounds, Client
from flows.core.settings import Settings
from flows.core.threads import each

with lazily(globals()):
    from debian import deb822  # with charset_normalizer

Offers = Mapping[str, tuple[str, ...]]
Stanzas = Iterable[bytes]  # of packages, each with its fields

_INDEX_BOUNDS = Bounds(size=2 << 20, seconds=60.0)
_LIST_BOUNDS = Bounds(size=256 << 20, seconds=900.0)  # packed; Debian's has some 10 MB
_CHUNK = 1 << 20
_MOST_UNPACKED = 4 << 30  # bytes
_MOST_MEMORY = 256 << 20  # bytes that unpacking may take
_LONGEST_STANZA = 1 << 20  # bytes; Debian's have some thousand
_MOST_KEPT = 512 << 20  # bytes of a list; Debian's has 20 MB
_KEPT = 7 * 24 * 3600.0  # seconds after its last use
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = ("Package", "Version", "SHA256", "Depends", "Pre-Depends", "Provides", "Essential")
_FIELD = re.compile(rf"^(?:{'|'.join(_FIELDS)}):.*(?:\n[ \t].*)*".encode(), re.MULTILINE)

logging.getLogger("debian.deb822").setLevel(logging.ERROR)  # it repeats each relation that it can't read


class Release(Document):
    """One state of a suite: hash and address of its list of packages, as its signed index names them."""

    digest: str
    packages: str


class ArchiveError(RefitError):
    """An archive that doesn't answer, or with something else than its indexes say."""


@contextmanager
def connection(settings: Settings) -> Iterator[Client]:
    """A client that reaches the mirror as apt does."""
    with Client(authorities(settings), proxy=settings.apt_proxy) as client:
        yield client


def releases(client: Client, urls: Sequence[str], architecture: str) -> dict[str, Release]:
    """The states of several suites, asked at once: address of the `InRelease` → state. Raises as `release` does."""
    return each(partial(release, client, architecture=architecture), urls, len(urls))


def release(client: Client, url: str, architecture: str) -> Release:
    """The state of the suite whose `InRelease` is at `url`.

    Raises:
        ArchiveError: it doesn't answer, or it names no list of packages.
    """
    with download(client, url, bounds=_INDEX_BOUNDS) as file:
        content = file.read()
    index = deb822.Release(content, fields=["SHA256", "Acquire-By-Hash"])
    listed = {str(entry.get("name")): str(entry.get("sha256")) for entry in index.get("SHA256", ())}
    place = f"main/binary-{architecture}"
    digest = listed.get(f"{place}/Packages.xz", "")
    if not _DIGEST.fullmatch(digest):
        raise ArchiveError(f"{url} names no list of packages for {architecture}.")
    name = f"by-hash/SHA256/{digest}" if index.get("Acquire-By-Hash") == "yes" else "Packages.xz"
    return Release(digest=digest, packages=f"{url.rpartition('/')[0]}/{place}/{name}")


@contextmanager
def download(client: Client, url: str, digest: str = "", bounds: Bounds = _LIST_BOUNDS) -> Iterator[IO[bytes]]:
    """The file at `url`, in a temporary file; where `digest` is given, it is checked.

    Raises:
        ArchiveError: it can't be had whole.
    """
    hasher = hashlib.sha256()

    def keep(piece: bytes) -> None:
        hasher.update(piece)
        file.write(piece)

    with tempfile.TemporaryFile() as file:
        try:
            answer = client.fetch("GET", url, bounds, sink=keep)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise ArchiveError(f"{url} doesn't answer.", why=str(error) or type(error).__name__) from None
        if answer.status != 200:
            raise ArchiveError(f"{url} answers {answer.status}.")
        if digest and hasher.hexdigest() != digest:
            raise ArchiveError(f"{url} is not what the archive's index says.")
        file.seek(0)
        yield file


def packages(client: Client, release: Release, folder: Path) -> Stanzas:
    """The packages of a suite, from `folder`: a file that was downloaded once is kept there under its digest, unpacked.

    Raises:
        ArchiveError: they can't be had whole.
    """
    kept = folder / release.digest
    with one_at_a_time(folder / "lock"):
        if kept.exists():
            kept.touch()
        else:
            with download(client, release.packages, release.digest) as file:
                write_whole_of(kept, _shortened(unpacked(file)))
            _forget_old(folder)
    return _Kept(kept)


@dataclass(frozen=True)
class _Kept:
    """The stanzas of a list that was kept, read from the disk each time: as objects of Python they take 100 MB."""

    file: Path

    def __iter__(self) -> Iterator[bytes]:
        with self.file.open("rb") as file:
            yield from _split(iter(partial(file.read, _CHUNK), b""))


def _shortened(stanzas: Stanzas) -> Iterator[bytes]:
    """Stanzas as a file, with those of their fields alone that are read here."""
    remaining = _MOST_KEPT
    for stanza in stanzas:
        fields = b"\n".join(_FIELD.findall(stanza)) + b"\n\n"
        if (remaining := remaining - len(fields)) < 0:
            raise ArchiveError("The archive's list of packages is none.", why=f"It has more than {_MOST_KEPT} bytes.")
        yield fields


def _forget_old(folder: Path) -> None:
    for file in folder.iterdir():
        if file.name != "lock" and time.time() - file.stat().st_mtime > _KEPT:
            file.unlink(missing_ok=True)


def offers(packages: Stanzas, names: Collection[str]) -> Offers:
    """Offers of a list of packages for `names`: package → `version sha256` of each file, sorted.

    That is the packages of these names, those that say that they provide one of them, and the essential ones, which
    every system has. A file's hash stands for its dependencies, too: they are written inside.
    """
    chosen = frozenset(names)
    offers_there: dict[str, set[str]] = {}
    for stanza in packages:
        if _name(stanza) in chosen or b"\nProvides: " in stanza or b"\nEssential: yes" in stanza:
            fields = _fields(stanza)
            if not {"Package", "Version", "SHA256"} <= fields.keys():
                continue
            own = {fields["Package"], *_mentioned(fields.get("Provides", ""))}
            if own & chosen or fields.get("Essential") == "yes":
                offers_there.setdefault(fields["Package"], set()).add(f"{fields['Version']} {fields['SHA256']}")
    return {name: tuple(sorted(files)) for name, files in sorted(offers_there.items())}


def needed(packages: Stanzas, names: Collection[str]) -> frozenset[str]:
    """All names that the dependencies of the packages `names` mention: alternatives and virtual packages, too."""
    chosen = frozenset(names)
    paths: set[str] = set()
    for fields in (_fields(stanza) for stanza in packages if _name(stanza) in chosen):
        paths |= _mentioned(fields.get("Depends", "")) | _mentioned(fields.get("Pre-Depends", ""))
    return frozenset(paths)


def together(parts: Iterable[Offers]) -> Offers:
    """The offers of several suites, as one."""
    merged: dict[str, set[str]] = {}
    for part in parts:
        for name, files in part.items():
            merged.setdefault(name, set()).update(files)
    return {name: tuple(sorted(files)) for name, files in sorted(merged.items())}


def unpacked(packages: IO[bytes]) -> Iterator[bytes]:
    """The stanzas of a compressed list, one after the other: the whole one would take 50 MB.

    Raises:
        ArchiveError: it can't be unpacked, or holds more than any list does.
    """
    packages.seek(0)
    try:
        yield from _split(_unpacked(packages))
    except lzma.LZMAError as error:
        raise ArchiveError("The archive's list of packages can't be unpacked.", why=str(error)) from None


def _split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n\n")
        if len(rest) > _LONGEST_STANZA:
            raise ArchiveError("The archive's list of packages is none.", why="One of its packages has no end.")
        yield from whole
    yield rest


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    remaining, unpacker = _MOST_UNPACKED, lzma.LZMADecompressor(memlimit=_MOST_MEMORY)
    while remaining > 0:
        packed = file.read(_CHUNK) if unpacker.needs_input else b""
        if unpacker.needs_input and not packed:
            raise lzma.LZMAError("it has no end")
        piece = unpacker.decompress(packed, _CHUNK)
        remaining -= len(piece)
        yield piece
        if unpacker.eof:
            return
    raise lzma.LZMAError(f"unpacked it has more than {_MOST_UNPACKED} bytes")


def _name(stanza: bytes) -> str:
    first = stanza.partition(b"\n")[0]
    return first.removeprefix(b"Package: ").decode(errors="replace")


def _fields(stanza: bytes) -> Mapping[str, str]:
    return deb822.Deb822(stanza)


def _mentioned(relations: str) -> set[str]:
    # Without runs of spaces, over which the library's expression would take minutes.
    either = deb822.PkgRelation.parse_relations(" ".join(relations.split()))
    return {other["name"] for others in either for other in others if other["name"]}
