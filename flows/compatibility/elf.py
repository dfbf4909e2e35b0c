"""Requirements of a program or library on the system that it runs on, read as the loader reads it: by its segments
alone.

The files are somebody else's: nothing that they say is believed, and what is read of one is bounded.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from elftools.common.exceptions import ELFError
from elftools.construct.core import ConstructError
from elftools.construct.lib.container import Container
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import StringTableSection

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_BYTES = 1 << 20  # of one file, of which its tags and their texts take some thousand
MOST_ENTRIES = 500  # of any table
MOST_DIGITS = 64  # of a version, with its dots: Python reads no number of thousands of digits
MOST_SEGMENTS = 1170  # what Linux itself loads: 64 KiB of their headers

Read = Callable[[int, int], bytes]
"""Reads from a file: where it begins, how many bytes at most."""

_HEADER = 64  # bytes
_BUFFER = 256  # bytes: most texts are short, and far from each other
_NOBODY_KNOWS = 1 << 62  # where a file ends: it is read from where its tables are
_SECTIONS = {1: ((32, "I"), (46, "HHH")), 2: ((40, "Q"), (58, "HHH"))}  # by class: where a header names them
# Errors of pyelftools where a file contradicts itself.
_BROKEN = (ELFError, ConstructError, struct.error, ValueError, OverflowError, LookupError, AssertionError)


@dataclass(frozen=True)
class Needs:
    """Requirements of a file: libraries by soname, and the highest version of each of their interfaces.

    `versions` is e.g. `{"GLIBC": (2, 34)}`.
    """

    libraries: tuple[str, ...] = ()
    versions: dict[str, tuple[int, ...]] = field(default_factory=dict)


class NotReadable(ValueError):
    """No ELF file, or one that contradicts itself."""


def needs(read: Read) -> Needs:
    """Requirements of the file behind `read`; none if it is linked statically.

    Raises:
        NotReadable: it is no ELF file, or a broken one.
    """
    try:
        file = ELFFile(io.BufferedReader(_Bounded(read), _BUFFER))
        if file.header.e_phnum > MOST_SEGMENTS:
            raise NotReadable("it has more segments than Linux loads")
        dynamic = next(file.iter_segments("PT_DYNAMIC"), None)
        return _needs(dynamic) if isinstance(dynamic, DynamicSegment) else Needs()
    except _BROKEN as error:
        raise NotReadable(str(error)) from None


def _needs(dynamic: DynamicSegment) -> Needs:
    tags = list(islice(dynamic.iter_tags(), MOST_ENTRIES))
    values = {tag.entry.d_tag: tag.entry.d_val for tag in reversed(tags)}
    versions: dict[str, tuple[int, ...]] = {}
    for name in _interfaces(dynamic.elffile, values):
        interface, _, version = name.rpartition("_")
        if numbers := numbered(version):
            versions[interface] = max(versions.get(interface, ()), numbers)
    return Needs(tuple(str(vars(tag)["needed"]) for tag in tags if tag.entry.d_tag == "DT_NEEDED"), versions)


def _interfaces(file: ELFFile, tags: Mapping[str, int]) -> Iterator[str]:
    """The interfaces that the loader looks for: `GLIBC_2.34`."""
    count = min(tags.get("DT_VERNEEDNUM", 0), MOST_ENTRIES)
    if count:
        texts, versions = (_section(file, tags[tag], count) for tag in ("DT_STRTAB", "DT_VERNEED"))
        strings = StringTableSection(texts, "", file)
        for _, interfaces in GNUVerNeedSection(versions, "", file, strings).iter_versions():
            yield from (interface.name for interface in islice(interfaces, MOST_ENTRIES))


def _section(file: ELFFile, address: int, entries: int) -> Container:
    """A table at an address in memory, as pyelftools expects it: with the header of a section."""
    offset = next(file.address_offsets(address), None)
    if offset is None:
        raise NotReadable("a table lies outside the file")
    return Container(sh_offset=offset, sh_info=entries, sh_flags=0, sh_size=0, sh_addralign=0)


class _Bounded(io.RawIOBase):
    """A file without its table of sections, which no loader looks at; it ends reading that doesn't end by itself."""

    def __init__(self, read: Read) -> None:
        self._from, self._at, self._left = read, 0, MOST_BYTES
        self._head = _without_sections(read(0, _HEADER))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: _NOBODY_KNOWS}[whence]
        if not 0 <= base + offset < 1 << 63:
            raise NotReadable("a table lies outside the file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: WriteableBuffer) -> int:
        buffer = memoryview(into)
        content = self._head[self._at :] if self._at < len(self._head) else self._from(self._at, len(buffer))
        content = content[: len(buffer)]
        buffer[: len(content)] = content
        self._at += len(content)
        self._left -= len(buffer)
        if self._left < 0:
            raise NotReadable("too much of it would have to be read")
        return len(content)


def _without_sections(head: bytes) -> bytes:
    if len(head) < _HEADER or head[4] not in _SECTIONS:
        raise NotReadable("no ELF file")
    changed = bytearray(head)
    for at, form in _SECTIONS[head[4]]:
        struct.pack_into(f"={form}", changed, at, *(0 for _ in form))
    return bytes(changed)


def numbered(version: str) -> tuple[int, ...]:
    """`2.34` as numbers, so that 2.9 is before 2.34; empty if there is anything else in it, or more than a version."""
    parts = version.split(".")
    are_numbers = len(version) <= MOST_DIGITS and all(part.isdecimal() and part.isascii() for part in parts)
    return tuple(map(int, parts)) if are_numbers else ()
