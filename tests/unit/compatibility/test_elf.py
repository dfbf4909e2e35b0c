"""Facts about compiled files, also of those that somebody made to be misread."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.compatibility import elf

LS = Path("/bin/ls").read_bytes()
TEXTS, VERSIONS = 0x200, 0x280  # where they are in a file that is made here


def read(content: bytes) -> Callable[[int, int], bytes]:
    return lambda at, size: content[at : at + size]


def spoilt(where: int, by: bytes = b"\xff" * 8) -> elf.Needs:
    return elf.needs(read(LS[:where] + by + LS[where + len(by) :]))


def made(wide: bool = True, order: str = "<", count: int = 1, following: int = 0, segments: int = 2) -> bytes:
    """A program without sections that needs `libmine.so.1` and `MINE_1.10`, `MINE_1.9` of it."""
    pack = partial(lambda form, *values: struct.pack(order + form, *values))
    word = "Q" if wide else "I"
    head = b"\x7fELF" + bytes((2 if wide else 1, 1 if order == "<" else 2, 1)) + bytes(9)
    size, entry = (64, 56) if wide else (52, 32)
    head += pack(f"HHI{word}{word}{word}IHHHHHH", 3, 62, 1, 0, size, 0, 0, size, entry, segments, 0, 0, 0)

    def segment(kind: int, at: int, length: int) -> bytes:
        where = (kind, 4, at, at, at, length, length, 8) if wide else (kind, at, at, at, length, length, 4, 8)
        return pack("IIQQQQQQ" if wide else "IIIIIIII", *where)

    tags = ((1, 1), (5, TEXTS), (0x6FFFFFFE, VERSIONS), (0x6FFFFFFF, count), (0, 0))
    dynamic = b"".join(pack(word * 2, *tag) for tag in tags)
    versions = pack("HHIII", 1, 2, 1, 16, following) + pack("IHHII", 0, 0, 2, 14, 16) + pack("IHHII", 0, 0, 3, 24, 0)
    parts = {0: head, size: segment(1, 0, 0x400) + segment(2, 0x100, len(dynamic)), 0x100: dynamic}
    parts |= {TEXTS: b"\0libmine.so.1\0MINE_1.10\0MINE_1.9\0", VERSIONS: versions, 0x3FF: b"\0"}
    content = bytearray(0x400)
    for at, part in parts.items():
        content[at : at + len(part)] = part
    return bytes(content)


@pytest.mark.parametrize("wide", [True, False], ids=["64 bits", "32 bits"])
@pytest.mark.parametrize("order", "<>", ids=["little-endian", "big-endian"])
def test_needs_of_every_kind_of_elf_file(wide: bool, order: str) -> None:
    assert elf.needs(read(made(wide, order))) == elf.Needs(("libmine.so.1",), {"MINE": (1, 10)})


@pytest.mark.parametrize(
    ("where", "why"),
    [(0, "no ELF file"), (32, "offset-sized"), (54, "more segments than Linux loads")],
    ids=["magic", "place of the segments", "their size and number"],
)
def test_needs_of_a_broken_header_are_refused(where: int, why: str) -> None:
    with pytest.raises(elf.NotReadable, match=why):
        spoilt(where)


@pytest.mark.parametrize("where", [40, 72, 200], ids=["place of the sections", "first segment", "address of a segment"])
def test_needs_ignore_what_no_loader_reads(where: int) -> None:
    assert "libc.so.6" in elf.needs(read(LS)).libraries
    assert spoilt(where) == elf.needs(read(LS))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF" + bytes(60),
        b"#!/bin/sh\n" + bytes(60),
        made()[:0x210],
        made(segments=0xFFFF),
        made()[:0x100] + b"\xff" * 0x300,
    ],
    ids=["empty", "four bytes", "no class", "a script", "cut off", "segments counted in a section", "no end of tags"],
)
def test_needs_of_what_is_no_whole_program_are_refused(content: bytes) -> None:
    with pytest.raises(elf.NotReadable, match=r"no ELF file|more segments than Linux loads|expected [0-9]+, found 0"):
        elf.needs(read(content))


@pytest.mark.parametrize("following", [0, 0xFFFFFFFF], ids=["in a circle", "far away"])
def test_versions_that_have_no_end_cost_no_more_than_others(following: int) -> None:
    assert most_read(made(count=0xFFFFFFFF, following=following)) <= elf.MOST_BYTES + 512


def most_read(content: bytes) -> int:
    """How many bytes are asked for, whatever comes of it."""
    asked = [0]

    def count(at: int, size: int) -> bytes:
        asked[0] += size
        return content[at : at + size]

    try:
        elf.needs(count)
    except elf.NotReadable:
        return asked[0]
    return asked[0]


def test_a_text_without_an_end_is_not_read_for_long() -> None:
    endless = made()[:TEXTS] + b"a" * (8 << 20)
    assert most_read(endless) <= elf.MOST_BYTES + 512


@given(st.lists(st.tuples(st.integers(0, 0x3FF), st.binary(min_size=1, max_size=8)), max_size=6), st.booleans())
def test_needs_of_any_file_are_told_or_refused(changes: list[tuple[int, bytes]], wide: bool) -> None:
    content = bytearray(made(wide))
    for at, by in changes:
        content[at : at + len(by)] = by
    assert most_read(bytes(content)) <= elf.MOST_BYTES + 512


@given(st.integers(0, len(LS) - 1), st.binary(min_size=1, max_size=8))
def test_needs_of_a_real_program_that_was_spoilt_are_told_or_refused(at: int, by: bytes) -> None:
    assert most_read(LS[:at] + by + LS[at + len(by) :]) <= elf.MOST_BYTES + 512


def test_a_large_program_is_read_without_its_texts(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.write(made())
        file.truncate(1 << 40)
    with large.open("rb") as file:
        assert elf.needs(lambda at, size: os.pread(file.fileno(), size, at)).libraries == ("libmine.so.1",)
