"""What a program or library asks of the system that it runs on, read from its ELF header as the loader reads it.

The files are somebody else's: nothing that they say is believed, and what is read of one is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MAGIC = b"\x7fELF"
MOST_BYTES = 1 << 22  # of any table
MOST_ENTRIES = 500

Read = Callable[[int, int], bytes]
"""Reads from a file: where it begins, how many bytes at most."""

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _STRINGS_SIZE, _VERSIONS, _VERSIONS_COUNT = 1, 5, 10, 0x6FFFFFFE, 0x6FFFFFFF


@dataclass(frozen=True)
class Needs:
    """What a file needs: libraries by soname, and the highest version of each of their interfaces.

    `versions` is e.g. `{"GLIBC": (2, 34)}`.
    """

    libraries: tuple[str, ...] = ()
    versions: dict[str, tuple[int, ...]] = field(default_factory=dict)


class NotReadable(ValueError):
    """No ELF file, or one that contradicts itself."""


def needs(read: Read) -> Needs:
    """What the file behind `read` needs; nothing if it is linked statically.

    Raises:
        NotReadable: it is no ELF file, or a broken one.
    """
    try:
        return _Elf(read).needs()
    except (struct.error, ValueError, OverflowError) as error:
        raise NotReadable(str(error)) from None


class _Elf:
    """Little-endian and big-endian, 32 and 64 bits: the layout is that of the ELF specification."""

    def __init__(self, read: Read) -> None:
        self._from = read
        head = self._read(0, 64)
        if head[:4] != MAGIC:
            raise ValueError("no ELF file")
        self._wide, self._order = head[4] == 2, "<" if head[5] == 1 else ">"
        where, size, count = (32, 54, 56) if self._wide else (28, 42, 44)
        (start,) = struct.unpack_from(self._order + ("Q" if self._wide else "I"), head, where)
        (entry,), (entries,) = (struct.unpack_from(self._order + "H", head, place) for place in (size, count))
        self._segments = [self._segment(start + number * entry) for number in range(min(entries, MOST_ENTRIES))]

    def needs(self) -> Needs:
        dynamic = [(at, size) for kind, at, _, size in self._segments if kind == _DYNAMIC]
        if not dynamic:
            return Needs()
        tags = list(self._tags(*dynamic[0]))
        known = dict(tags)
        if _STRINGS not in known:
            return Needs()
        strings = self._read(self._place(known[_STRINGS]), known.get(_STRINGS_SIZE, 0))
        libraries = tuple(_text(strings, value) for tag, value in tags if tag == _NEEDED)
        count = min(known.get(_VERSIONS_COUNT, 0), MOST_ENTRIES)
        return Needs(libraries, self._versions(self._place(known[_VERSIONS]), count, strings) if count else {})

    def _read(self, at: int, size: int) -> bytes:
        if size > MOST_BYTES:
            raise ValueError("a table is too large")
        return self._from(at, size)

    def _segment(self, at: int) -> tuple[int, int, int, int]:
        """Type, offset in the file, address in memory, size in the file."""
        if self._wide:
            kind, _, offset, address, _, size = struct.unpack(self._order + "IIQQQQ", self._read(at, 40))
        else:
            kind, offset, address, _, size = struct.unpack(self._order + "IIIII", self._read(at, 20))
        return kind, offset, address, size

    def _place(self, address: int) -> int:
        """Where in the file that is which will be at `address` in memory."""
        for kind, offset, start, size in self._segments:
            if kind == _LOAD and start <= address < start + size:
                return address - start + offset
        raise ValueError("a table lies outside the file")

    def _tags(self, at: int, size: int) -> Iterator[tuple[int, int]]:
        form = self._order + ("qQ" if self._wide else "iI")
        content = self._read(at, size)
        step = struct.calcsize(form)
        for place in range(0, len(content) - step + 1, step):
            tag, value = struct.unpack_from(form, content, place)
            if tag == 0:
                return
            yield tag, value

    def _versions(self, at: int, count: int, strings: bytes) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(count):
            _, names, _, first, following = struct.unpack(self._order + "HHIII", self._read(at, 16))
            place = at + first
            for _ in range(min(names, MOST_ENTRIES)):
                _, _, _, name, step = struct.unpack(self._order + "IHHII", self._read(place, 16))
                interface, _, version = _text(strings, name).rpartition("_")
                if numbers := numbered(version):
                    found[interface] = max(found.get(interface, ()), numbers)
                place += step
            at += following
        return found


def numbered(version: str) -> tuple[int, ...]:
    """`2.34` as numbers, so that 2.9 is before 2.34; empty if there is anything else in it."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() and part.isascii() for part in parts) else ()


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode("ascii", "replace")
