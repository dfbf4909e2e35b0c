"""Archives as the worst neighbour makes them: bombs, links, devices, holes, names that lead out, and floods."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from flows.authoring.own import reading
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from tests.support.own_archives import special, tarred, zipped

pytestmark = pytest.mark.slow  # a program is started for each
PLAIN = {"os/a": b"1", "b": b"2"}


def read(content: bytes) -> dict[str, bytes]:
    return reading.from_archive(io.BytesIO(content))


@pytest.mark.parametrize(
    "make", [lambda: tarred(**PLAIN), lambda: gzip.compress(tarred(**PLAIN)), lambda: zipped(PLAIN)]
)
def test_all_three_kinds_are_read(make: Callable[[], bytes]) -> None:
    assert read(make()) == PLAIN


def test_the_folder_around_all_and_what_desktops_add_are_left_out() -> None:
    around = {f"mine/{path}": text for path, text in PLAIN.items()}
    assert read(zipped({**around, "__MACOSX/mine/._b": b"x", "mine/.DS_Store": b"x"})) == PLAIN
    assert read(tarred(special(tarfile.DIRTYPE, "mine"), **around)) == PLAIN


def sparse() -> bytes:
    """An archive of GNU's, with a file of which it says that it has a terabyte of holes."""
    member = special(tarfile.GNUTYPE_SPARSE)
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT)[:512])
    header[386:410] = b"00000000000\x0000000000000\x00"
    header[483:495] = b"\x80" + (1 << 40).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\x00 " % sum(header)
    return bytes(header) + b"\0" * 10240


def bomb() -> bytes:
    return zipped({f"f{number}": b"\0" * 900_000 for number in range(90)})


def quine() -> bytes:
    """A zip whose entries all say that their content is the same megabyte."""
    one = zipped({"a": b"\0" * 900_000})
    at, end = one.index(b"PK\x01\x02"), one.index(b"PK\x05\x06")
    entries = b"".join(one[at:end].replace(b"a", b"abcdefgh"[i : i + 1], 1) for i in range(8))
    closing = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 8, 8, len(entries), at, 0)
    return one[:at] + entries + closing


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(
            lambda: tarred(special(tarfile.SYMTYPE, "display.txt", "/etc/shadow")), "no plain file", id="a link"
        ),
        pytest.param(
            lambda: tarred(special(tarfile.SYMTYPE, "os", "/etc"), **{"os/shadow": b"x"}),
            "no plain file",
            id="a file below a link",
        ),
        pytest.param(lambda: tarred(special(tarfile.LNKTYPE, "x", "/etc/shadow")), "no plain file", id="a hard link"),
        pytest.param(lambda: tarred(special(tarfile.CHRTYPE)), "no plain file", id="a device"),
        pytest.param(lambda: tarred(special(tarfile.FIFOTYPE)), "no plain file", id="a pipe"),
        pytest.param(sparse, "no plain file", id="a terabyte of holes"),
        pytest.param(lambda: tarred(**{"../x": b"x"}), "leads out", id="above"),
        pytest.param(lambda: tarred(**{"os/../../x": b"x"}), "leads out", id="above by a detour"),
        pytest.param(lambda: tarred(**{"/etc/passwd": b"x"}), "leads out", id="absolute"),
        pytest.param(lambda: zipped({"..\\x": b"x"}), "leads out", id="above for Windows"),
        pytest.param(lambda: tarred(**{"a\nb": b"x"}), "isn't seen", id="two lines"),
        pytest.param(lambda: tarred(**{"a\x1b[2Jb": b"x"}), "isn't seen", id="a terminal's escape"),
        pytest.param(lambda: tarred(**{"a\u202eb": b"x"}), "isn't seen", id="from right to left"),
        pytest.param(lambda: tarred(**{"a/b/c/d/e": b"x", "z": b""}), "deeper", id="deep"),
        pytest.param(lambda: tarred(a=b"x" * 1_000_001), "larger", id="large"),
        pytest.param(
            lambda: zipped({"display.txt": b"/etc/shadow"}, stat.S_IFLNK), "no plain file", id="a link of zip"
        ),
        pytest.param(lambda: zipped({"x": b""}, stat.S_IFCHR), "no plain file", id="a device of zip"),
        pytest.param(lambda: zipped({"x": b"x"}, method=zipfile.ZIP_LZMA), "no plain file", id="lzma"),
        pytest.param(bomb, "larger", id="a bomb of zip"),
        pytest.param(lambda: gzip.compress(b"\0" * 500_000_000), "unpacked", id="a bomb of gzip"),
        pytest.param(lambda: tarred(**{f"f{n}": b"" for n in range(200)}), "more than 100", id="many of tar"),
        pytest.param(
            lambda: gzip.compress(tarred(**{f"f{n}": b"" for n in range(7000)})), "more than 100", id="thousands"
        ),
        pytest.param(lambda: zipped({f"f{n}": b"" for n in range(30_000)}), "more than 100", id="many of zip"),
    ],
)
def test_everything_else_is_refused_in_a_moment(make: Callable[[], bytes], why: str) -> None:
    content = make()
    begun = time.monotonic()
    with pytest.raises(Mistakes, match=why) as refused:
        read(content)
    assert time.monotonic() - begun < reading.SECONDS
    assert "\x1b" not in str(refused.value) and "\u202e" not in str(refused.value)


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(Mistakes, match="twice"):
        read(tarred(tarfile.TarInfo("a"), tarfile.TarInfo("./a")))


BROKEN: dict[str, Callable[[], bytes]] = {
    "overlapping files": quine,
    "nothing": lambda: b"",
    "noise": lambda: b"no archive" * 1000,
    "a part of tar": lambda: tarred(**PLAIN)[:700],
    "a part of zip": lambda: zipped(PLAIN)[:-30],
    "the magic of zip": lambda: b"PK",
    "a text in gzip": lambda: gzip.compress(b"x" * 2000),
    "the magic of gzip": lambda: b"\x1f\x8b",
}


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_broken_archives_are_said_to_be_none(make: Callable[[], bytes]) -> None:
    with pytest.raises(RefitError, match=r"no archive|is missing") as refused:
        if not read(make()):
            raise RefitError("a file is missing")
    assert "Traceback" not in str(refused.value)


def test_a_million_files_are_more_bytes_than_an_archive_may_have() -> None:
    with pytest.raises(RefitError, match="more than 4,000,000 bytes"):
        read(b"\0" * (512 * 1_000_000 // 100))


def test_random_bytes_after_a_magic_never_hang_or_crash(tmp_path: Path) -> None:
    for number, start in enumerate((b"PK\x03\x04", b"\x1f\x8b\x08", tarred(**PLAIN)[:512], b"PK\x05\x06")):
        noise = start + os.urandom(3000 * (number + 1))
        with suppress(RefitError):  # tar ends where no member follows
            assert len(read(noise)) < 2
    assert not list(tmp_path.iterdir())
