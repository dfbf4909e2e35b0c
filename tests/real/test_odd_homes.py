"""Homes as nobody expects them: with holes, a million files, names that are no text; that change, or fill the disk."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from flows.catalog.model import Access
from flows.compatibility.scan import of_folder
from flows.core import command, process_records
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions.homes import copying, enclosed
from flows.sessions.homes.copying import Extent, NobodyKnows
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.homes.space_reservation import NoRoom
from flows.sessions.model import Session
from tests.support.waiting import some_long, wait_until

UID = 234_570
TERABYTE, BIG = 1 << 40, 8 << 40
SOON = 120.0  # seconds: what would read the holes takes hours
# What a person's programs do, and what nobody does: files grow and shrink, folders go, move, and become links.
WRITER = r"""
import contextlib, os, random, shutil
def act(name, other, number):
    if number % 11 == 0:
        shutil.rmtree(name)
        os.symlink("/etc", name)
    elif os.path.islink(name):
        os.unlink(name)
    elif number % 5 == 0:
        os.rename(name, other)
    elif number % 3 == 0:
        shutil.rmtree(other)
    else:
        os.makedirs(name, exist_ok=True)
        with open(f"{name}/{number % 7}", "ab") as file:
            file.write(os.urandom(random.randrange(100_000)))
            if file.tell() > 500_000:
                file.truncate(0)
print("writes", flush=True)
number = 0
while number := number + 1:
    with contextlib.suppress(OSError):
        act(f"d{random.randrange(40)}", f"d{random.randrange(40)}", number)
"""


def session_in(homes: LocalHomes) -> Session:
    return Session("ana", "p", "2026a", "sha256:0", UID, homes.make("ana", UID), Path("/token"), Access())


@pytest.fixture(params=some_long(["folders", "pool"], "folders"))
def homes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalHomes]:
    settings = Settings(home=tmp_path / "refit")
    if request.param == "pool":
        Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    yield homes
    if request.param == "pool":
        command.run(["umount", homes.pool.folder], root=True)


@pytest.fixture
def session(homes: LocalHomes) -> Session:
    return session_in(homes)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def test_a_file_of_holes_is_copied_compared_and_brought_back_as_what_it_is(homes: LocalHomes, session: Session) -> None:
    def sparse(name: str, size: int, at: int, content: bytes) -> Path:
        file = session.home / name
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
        snapshot = homes.delta(session, "move")
        assert (snapshot / "other.img").stat().st_blocks < 100
        assert homes.differences(session, "move") == ()

        before = disk.stat()
        with disk.open("r+b") as opened:
            opened.seek(7 * TERABYTE)
            opened.write(b"x")
        os.utime(disk, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert homes.differences(session, "move") == ("changed: deep/disk.img",)

        (session.home / "other.img").unlink()
        (session.home / "deep").rename(session.home / "away")
        homes.restore(session, "move")
        assert homes.differences(session, "move") == ()
        for name, at, content in (
            ("other.img", 3 * TERABYTE, b"after the copy"),
            ("deep/disk.img", 5 * TERABYTE, b"in the center"),
        ):
            status = (session.home / name).stat()
            assert (status.st_size, status.st_uid, oct(status.st_mode)[-3:]) == (BIG, UID, "640")
            assert status.st_blocks < 100
            with (session.home / name).open("rb") as opened:
                opened.seek(at)
                assert opened.read(len(content)) == content
        assert not (session.home / "away").exists()
        homes.remove("ana")


def test_holes_where_something_else_is_in_the_way(homes: LocalHomes, session: Session) -> None:
    outside = homes.path("other").with_name("outside")
    outside.mkdir()
    (session.home / "there").symlink_to(outside)
    (session.home / "folder").mkdir()
    homes.copy(session, "move")
    (session.home / "there").unlink()
    (session.home / "there").mkdir()
    (session.home / "folder").rmdir()
    with within(SOON):
        for name in ("there/disk.img", "folder"):
            (session.home / name).touch()
            os.truncate(session.home / name, 64 << 30)
        snapshot = homes.delta(session, "move")
        assert homes.differences(session, "move") == ()
    assert not (snapshot / "there").is_symlink() and (snapshot / "folder").is_file() and not list(outside.iterdir())


@pytest.mark.parametrize("files", [3_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_many_small_files(homes: LocalHomes, session: Session, files: int) -> None:
    for number in range(files):
        if number % 1000 == 0:
            (folder := session.home / str(number)).mkdir()
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
    folder.rename(session.home / "away")
    homes.restore(session, "move")
    assert homes.differences(session, "move") == ()
    assert of_folder(session.home, UID, "/home/dev").files > min(files, 2_000)
    homes.remove("ana")
    assert not session.home.exists()


def test_a_home_that_has_more_files_than_anybody_could_wait_for_is_refused_before_anything_is_stopped(
    tmp_path: Path,
) -> None:
    homes = LocalHomes(Settings(home=tmp_path / "refit", home_files=100))
    session = session_in(homes)
    for number in range(99):
        (session.home / str(number)).touch()
    homes.check_room(session)
    (session.home / "one more").touch()
    with pytest.raises(RefitError, match="more than 100 files") as refused:
        homes.check_room(session)
    assert "home_files" in refused.value.hint


def test_a_thousand_differences_are_told_and_no_more(homes: LocalHomes, session: Session) -> None:
    homes.delta(session, "move")
    for number in range(3000):
        (session.home / f"{number:04d}").touch()
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
        (folder := session.home / f"in {name[:200]}").mkdir()
        for path in (session.home / name, folder / name):
            path.write_bytes(b"one")
    homes.check_room(session)
    homes.copy(session, "move")
    assert homes.differences(session, "move") == ()
    for path in map(session.home.joinpath, names):
        times = path.stat()
        path.write_bytes(b"two")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    told = homes.differences(session, "move")
    assert len(set(told)) == len(NAMES) and all(line.isprintable() and line.isascii() for line in told), told
    assert len(homes.differences(session, "move", ["new*", "-rf"])) == len(NAMES) - 2
    assert of_folder(session.home, UID, "/home/dev").files > len(NAMES)
    homes.restore(session, "move")
    snapshot = homes.delta(session, "move")
    assert sorted(path.name for path in snapshot.iterdir()) == sorted(path.name for path in session.home.iterdir())
    homes.remove("ana")
    assert not session.home.exists()


def test_what_is_no_plain_file_is_copied_as_what_it_is(homes: LocalHomes, session: Session) -> None:
    home = session.home
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
    snapshot = homes.delta(session, "move")
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
    os.mknod(session.home / "disk", 0o060600, os.makedev(7, 200))
    with pytest.raises(RefitError) as refused:
        homes.copy(session, "move")
    assert "rsync failed" in str(refused.value) and "disk" in refused.value.why
    assert not homes.has_snapshot("ana", "move")


@contextmanager
def writing(home: Path, script: str = WRITER) -> Iterator[None]:
    """The session's user works in the home all the time."""
    as_user = ["setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups", sys.executable, "-I", "-S", "-c", script]
    writer = subprocess.Popen(as_user, cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout and writer.stdout.readline() == "writes\n"
        yield
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.long)])
def test_a_home_that_changes_all_the_time_is_copied_and_is_whole_once_nobody_writes(
    homes: LocalHomes, session: Session, times: int
) -> None:
    for number in range(times):
        with writing(session.home):
            homes.check_room(session)
            # What turns from a folder into a link under each of rsync's attempts it can't copy: the move is put off.
            with suppress(RefitError):
                homes.copy(session, f"move{number}")
        homes.delta(session, f"move{number}")
        assert homes.differences(session, f"move{number}") == ()
        homes.forget("ana", f"move{number}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path, int], None]]:
    """Mounts a file system of ext4 of so many bytes at a folder."""
    mounted: list[Path] = []

    def mount(folder: Path, size: int) -> None:
        image = tmp_path / f"{folder.name}.img"
        image.touch()
        os.truncate(image, size)
        command.run(["mkfs.ext4", "-q", image], root=True)
        folder.mkdir(parents=True, exist_ok=True)
        command.run(["mount", "-o", "loop", image, folder], root=True)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        command.run(["umount", folder], root=True)


def test_a_disk_that_fills_up_under_a_copy_is_left_without_half_of_it(
    tmp_path: Path, small_disk: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_disk(tmp_path / "refit/snapshots", 600 << 20)
    homes = LocalHomes(Settings(home=tmp_path / "refit"))
    session = session_in(homes)
    (session.home / "log").write_bytes(os.urandom(700 << 20))
    with monkeypatch.context() as patch:  # it was small when it was counted
        patch.setattr(copying, "extent_of", lambda *_: Extent(1 << 20, 1))
        with pytest.raises(NoRoom, match="can't be copied any further") as refused:
            homes.copy(session, "move")
    assert "make room" in refused.value.hint and not homes.has_snapshot("ana", "move")
    usage = os.statvfs(tmp_path / "refit/snapshots")
    assert usage.f_bavail * usage.f_frsize > 450 << 20
    os.truncate(session.home / "log", 10 << 20)
    homes.copy(session, "move")
    assert homes.differences(session, "move") == ()


def test_a_home_without_room_is_brought_back_nonetheless(
    tmp_path: Path, small_disk: Callable[[Path, int], None]
) -> None:
    """Its user has filled the disk to the last byte that is for users: what was there before has its place again."""
    small_disk(tmp_path / "refit/homes", 200 << 20)
    homes = LocalHomes(Settings(home=tmp_path / "refit"))
    session = session_in(homes)
    (session.home / "data").write_bytes(os.urandom(6 << 20))
    os.chown(session.home / "data", UID, 0)
    homes.delta(session, "move")
    fill = "rm data; cat /dev/zero >more || true; ls"
    as_user = ["setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups", "sh", "-c", fill]
    assert command.run(as_user, root=True, cwd=session.home).stdout == "more\n"
    homes.restore(session, "move")
    assert homes.differences(session, "move") == ()


def test_what_copies_ends_with_those_who_began_it(homes: LocalHomes, session: Session, tmp_path: Path) -> None:
    for number in range(8):
        (session.home / str(number)).write_bytes(bytes(100 << 20))
    notes, target = tmp_path / "running", tmp_path / "target"

    def programs() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if str(target) in process.cmdline():
                    found.append(process)
        return found

    def copy() -> None:
        with command.recorded(notes), suppress(RefitError):
            copying.duplicate(session.home, target, 600)

    def kill() -> None:
        """As the system does that runs out of memory."""
        for note in process_records.noted(notes):
            os.kill(note.pid, signal.SIGKILL)

    for end in (lambda: process_records.end_recorded(notes), kill):
        with ThreadPoolExecutor(1) as pool:
            began = pool.submit(copy)
            wait_until(lambda: any(process.name() in ("cp", "rsync") for process in programs()))
            end()
            while not began.done():  # rsync begins where cp has ended
                end()
                time.sleep(0.02)
            began.result()
        assert not programs()
        copying.remove(target)


def test_a_program_that_nobody_waits_for_leaves_the_cores_to_others() -> None:
    hurried, yielding = (int(enclosed.run(["nice"], limit=60, yields=yields).stdout) for yields in (False, True))
    assert hurried < yielding


def test_copies_and_comparisons_have_their_minutes(tmp_path: Path) -> None:
    homes = LocalHomes(Settings(home=tmp_path / "refit"))
    session = session_in(homes)
    (session.home / "data").write_bytes(bytes(300 << 20))
    homes.delta(session, "move")
    hasty = LocalHomes(Settings(home=tmp_path / "refit", copy_timeout_minutes=0.0001, compare_timeout_minutes=0.0001))
    with pytest.raises(NobodyKnows, match=r"0\.0001 minutes") as unknown:
        hasty.differences(session, "move")
    assert "compare_timeout_minutes" in unknown.value.hint
    with pytest.raises(RefitError, match=r"longer than 0\.0001 minutes") as slow:
        hasty.copy(session, "another")
    assert "copy_timeout_minutes" in slow.value.hint and not homes.has_snapshot("ana", "another")


def test_a_program_that_is_enclosed_sees_what_it_is_given_and_nothing_else(tmp_path: Path) -> None:
    for name in ("read", "written", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    script = """
    cat "$1/read/file" "$1/written/file"; echo changed >"$1/written/file"
    ls -A / "$1" | grep -v '^$'; ls -A /etc; ls -A /dev /proc /root /home /run /tmp 2>/dev/null || true
    echo x >"$1/read/file" || echo "read only"; cat "$1/other/file" || echo "not there"
    mknod "$1/written/null" c 1 3 || echo "no device"
    """
    run = enclosed.run(
        ["sh", "-c", script, "sh", tmp_path], reads=[tmp_path / "read"], writes=[tmp_path / "written"], limit=60
    )
    said = run.stdout.splitlines()
    assert "readwritten" in run.stdout and {"read only", "not there", "no device"} <= set(said)
    assert (tmp_path / "written/file").read_text() == "changed\n"
    assert not {"dev", "proc", "run", "sys", "var", "passwd", "shadow", ".ssh", "other"} & set(said)
