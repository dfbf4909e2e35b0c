"""Files as nobody expects them in a home: with holes, a million of them, names that are no text, devices."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.compatibility.scan import of_folder
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.model import Session
from tests.support.homes import UID, session_in
from tests.support.waiting import PATIENCE

TERABYTE, BIG = 1 << 40, 8 << 40
SOON = max(120.0, PATIENCE)  # seconds: to read the holes takes hours


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def test_a_file_of_holes_is_copied_compared_and_brought_back_as_what_it_is(homes: LocalHomes, session: Session) -> None:
    def sparse(name: str, size: int, at: int, content: bytes) -> Path:
        file = folder_of(session.home) / name
        file.parent.mkdir(exist_ok=True)
        with file.open("wb") as opened:
            opened.truncate(size)
            opened.seek(at)
            opened.write(content)
        os.chown(file, UID, 0)
        file.chmod(0o640)
        return file

    with within(SOON):
        disk = sparse("deep/disk.img", BIG, 5 * TERABYTE, b"in the middle")
        homes.check_room(session)
        homes.copy(session, "move")
        sparse("other.img", BIG, 3 * TERABYTE, b"after the copy")
        sparse("deep/disk.img", BIG, 5 * TERABYTE, b"in the center")
        homes.delta(session, "move")
        snapshot = homes.snapshot("ana", "move")
        assert (snapshot / "other.img").stat().st_blocks < 100
        assert homes.differences(session, "move") == ()

        before = disk.stat()
        with disk.open("r+b") as opened:
            opened.seek(7 * TERABYTE)
            opened.write(b"x")
        os.utime(disk, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert homes.differences(session, "move") == ("changed: deep/disk.img",)

        (folder_of(session.home) / "other.img").unlink()
        (folder_of(session.home) / "deep").rename(folder_of(session.home) / "away")
        homes.restore(session, "move")
        assert homes.differences(session, "move") == ()
        for name, at, content in (
            ("other.img", 3 * TERABYTE, b"after the copy"),
            ("deep/disk.img", 5 * TERABYTE, b"in the center"),
        ):
            status = (folder_of(session.home) / name).stat()
            assert (status.st_size, status.st_uid, oct(status.st_mode)[-3:]) == (BIG, UID, "640")
            assert status.st_blocks < 100
            with (folder_of(session.home) / name).open("rb") as opened:
                opened.seek(at)
                assert opened.read(len(content)) == content
        assert not (folder_of(session.home) / "away").exists()
        homes.remove("ana")


def test_holes_where_something_else_is_in_the_way(homes: LocalHomes, session: Session) -> None:
    outside = homes.path("other").with_name("outside")
    outside.mkdir()
    (folder_of(session.home) / "there").symlink_to(outside)
    (folder_of(session.home) / "folder").mkdir()
    homes.copy(session, "move")
    (folder_of(session.home) / "there").unlink()
    (folder_of(session.home) / "there").mkdir()
    (folder_of(session.home) / "folder").rmdir()
    with within(SOON):
        for name in ("there/disk.img", "folder"):
            (folder_of(session.home) / name).touch()
            os.truncate(folder_of(session.home) / name, 64 << 30)
        homes.delta(session, "move")
        snapshot = homes.snapshot("ana", "move")
        assert homes.differences(session, "move") == ()
    assert not (snapshot / "there").is_symlink() and (snapshot / "folder").is_file() and not list(outside.iterdir())


@pytest.mark.parametrize("files", [3_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_small_files(homes: LocalHomes, session: Session, files: int) -> None:
    for number in range(files):
        if number % 1000 == 0:
            (folder := folder_of(session.home) / str(number)).mkdir()
        (folder / str(number)).write_bytes(b"x")
    homes.check_room(session)
    homes.copy(session, "move")
    homes.delta(session, "move")
    assert homes.differences(session, "move") == ()
    last = folder / str(files - 1)
    times = last.stat()
    last.write_bytes(b"y")
    os.utime(last, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert homes.differences(session, "move") == (f"changed: {last.relative_to(session.home)}",)
    folder.rename(folder_of(session.home) / "away")
    homes.restore(session, "move")
    assert homes.differences(session, "move") == ()
    assert of_folder(folder_of(session.home), UID, "/home/dev").files > min(files, 2_000)
    homes.remove("ana")
    assert not folder_of(session.home).exists()


def test_a_home_that_has_more_files_than_anybody_could_wait_for_is_refused_before_anything_is_stopped(
    tmp_path: Path,
) -> None:
    homes = LocalHomes(Settings(home=tmp_path / "refit", home_files=100))
    session = session_in(homes)
    for number in range(99):
        (folder_of(session.home) / str(number)).touch()
    homes.check_room(session)
    (folder_of(session.home) / "one more").touch()
    with pytest.raises(RefitError, match="more than 100 files") as refused:
        homes.check_room(session)
    assert "home_files" in refused.value.hint


def test_a_thousand_differences_are_told_and_no_more(homes: LocalHomes, session: Session) -> None:
    homes.delta(session, "move")
    for number in range(3000):
        (folder_of(session.home) / f"{number:04d}").touch()
    told = homes.differences(session, "move")
    assert len(told) == 1001 and told[0] == "new: 0000" and told[-1] == "and others"


NAMES = (
    b"new\nline",
    b"\xff\xfe no text",
    b"-rf",
    b"--delete",
    b" lead",
    b"trail ",
    b"back\\#012slash",
    b"tab\tbell\a",
)
NAMES += ("\x9b31mred\u202e\u2028x".encode(), b"\x1b]0;title\a", b"%i %n", b"*", b"[bold]", b"a" * 255)


def test_names_that_are_no_text_or_look_like_options(homes: LocalHomes, session: Session) -> None:
    names = [os.fsdecode(name) for name in NAMES]
    for name in names:
        (folder := folder_of(session.home) / f"in {name[:200]}").mkdir()
        for path in (folder_of(session.home) / name, folder / name):
            path.write_bytes(b"one")
    homes.check_room(session)
    homes.copy(session, "move")
    assert homes.differences(session, "move") == ()
    for path in map(folder_of(session.home).joinpath, names):
        times = path.stat()
        path.write_bytes(b"two")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    told = homes.differences(session, "move")
    assert len(set(told)) == len(NAMES) and all(line.isprintable() and line.isascii() for line in told), told
    assert len(homes.differences(session, "move", ["new*", "-rf"])) == len(NAMES) - 2
    assert of_folder(folder_of(session.home), UID, "/home/dev").files > len(NAMES)
    homes.restore(session, "move")
    homes.delta(session, "move")
    snapshot = homes.snapshot("ana", "move")
    assert sorted(path.name for path in snapshot.iterdir()) == sorted(
        path.name for path in folder_of(session.home).iterdir()
    )
    homes.remove("ana")
    assert not folder_of(session.home).exists()


def test_what_is_no_plain_file_is_copied_as_what_it_is(homes: LocalHomes, session: Session) -> None:
    home = folder_of(session.home)
    os.mkfifo(home / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home / "s"))
    (home / "one").write_text("one")
    os.link(home / "one", home / "same")
    (home / "closed").write_text("of mode 0000")
    (home / "program").write_text("x")
    for name in ("one", "closed", "program"):
        os.chown(home / name, UID, 0)
    (home / "closed").chmod(0)
    (home / "program").chmod(0o6755)
    os.setxattr(home / "one", "user.colour", b"blue")
    os.setxattr(home / "closed", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    os.mknod(home / "whiteout", 0o020644, 0)
    homes.copy(session, "move")
    homes.delta(session, "move")
    snapshot = homes.snapshot("ana", "move")
    assert homes.differences(session, "move") == ()
    for name in ("pipe", "s", "one", "closed", "program", "whiteout"):
        was, copied = (home / name).lstat(), (snapshot / name).lstat()
        assert (was.st_mode, was.st_uid, was.st_rdev) == (copied.st_mode, copied.st_uid, copied.st_rdev)
    assert (snapshot / "one").samefile(snapshot / "same")
    assert os.getxattr(snapshot / "one", "user.colour") == b"blue" and os.listxattr(snapshot / "closed")
    (home / "pipe").unlink()
    (home / "pipe").write_text("a file now")
    (home / "closed").unlink()
    os.mkfifo(home / "closed")
    assert sorted(homes.differences(session, "move")) == ["new: closed", "new: pipe"]  # of another kind
    homes.restore(session, "move")
    assert homes.differences(session, "move") == ()


def test_a_device_is_refused_where_it_would_have_to_be_made(tmp_path: Path) -> None:
    homes = LocalHomes(Settings(home=tmp_path / "refit"))
    session = session_in(homes)
    os.mknod(folder_of(session.home) / "disk", 0o060600, os.makedev(7, 200))
    with pytest.raises(RefitError) as refused:
        homes.copy(session, "move")
    assert "rsync failed" in str(refused.value) and "disk" in refused.value.why
    assert not homes.has_snapshot("ana", "move")
