"""Homes that change while they are copied, or fill the disk; programs at their limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from flows.core.errors import RefitError
from flows.core.programs import command, process_records
from flows.core.settings import Settings
from flows.sessions.homes import copying, enclosed
from flows.sessions.homes.copying import Extent, NobodyKnows
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.space_reservation import NoRoom
from flows.sessions.model import Session
from tests.support.homes import UID, session_in
from tests.support.waiting import wait_until

# How often a copy is begun that may be over before this process looks.
TRIES = 5
# Acts of a person's programs, and acts of nobody: files grow and shrink, folders go, move, and become links.
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
        with writing(folder_of(session.home)):
            homes.check_room(session)
            # A folder that turns into a link under each of rsync's attempts can't be copied: the move is put off.
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
    (folder_of(session.home) / "log").write_bytes(os.urandom(700 << 20))
    with monkeypatch.context() as patch:  # it was small when it was counted
        patch.setattr(copying, "extent_of", lambda *_: Extent(1 << 20, 1))
        with pytest.raises(NoRoom, match="can't be copied any further") as refused:
            homes.copy(session, "move")
    assert "make room" in refused.value.hint and not homes.has_snapshot("ana", "move")
    usage = os.statvfs(tmp_path / "refit/snapshots")
    assert usage.f_bavail * usage.f_frsize > 450 << 20
    os.truncate(folder_of(session.home) / "log", 10 << 20)
    homes.copy(session, "move")
    assert homes.differences(session, "move") == ()


def test_a_home_without_room_is_brought_back_nonetheless(
    tmp_path: Path, small_disk: Callable[[Path, int], None]
) -> None:
    """Its user has filled the disk to the last byte that is for users: the former content has its place again."""
    small_disk(tmp_path / "refit/homes", 200 << 20)
    homes = LocalHomes(Settings(home=tmp_path / "refit"))
    session = session_in(homes)
    (folder_of(session.home) / "data").write_bytes(os.urandom(6 << 20))
    os.chown(folder_of(session.home) / "data", UID, 0)
    homes.delta(session, "move")
    fill = "rm data; cat /dev/zero >more || true; ls"
    as_user = ["setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups", "sh", "-c", fill]
    assert command.run(as_user, root=True, cwd=folder_of(session.home)).stdout == "more\n"
    homes.restore(session, "move")
    assert homes.differences(session, "move") == ()


def test_what_copies_ends_with_those_who_began_it(tmp_path: Path) -> None:
    home, notes, target = tmp_path / "home", tmp_path / "running", tmp_path / "target"
    home.mkdir()
    for number in range(8):
        (home / str(number)).write_bytes(bytes(100 << 20))

    def programs() -> list[str]:
        """The names of those that copy."""
        names = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # one that has ended since
                if str(target) in process.cmdline():
                    names.append(process.name())
        return names

    def copy() -> None:
        with command.recorded(notes), suppress(RefitError):
            copying.duplicate(home, target, 600)

    def kill() -> None:
        """As the system does that runs out of memory."""
        for note in process_records.noted(notes):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(note.pid, signal.SIGKILL)

    for end in (lambda: process_records.end_recorded(notes), kill):
        with ThreadPoolExecutor(1) as pool:
            for _ in range(TRIES):
                copying.remove(target)
                began = pool.submit(copy)
                wait_until(lambda began=began: began.done() or not {"cp", "rsync"}.isdisjoint(programs()))
                if not began.done():
                    break
            else:
                pytest.fail("all copies were over between two looks")
            end()
            while not began.done():  # rsync begins where cp has ended
                end()
                time.sleep(0.02)
            began.result()
        wait_until(lambda: not programs())  # the kernel ends what is left of a namespace by itself, soon
        copying.remove(target)


def test_a_program_that_nobody_waits_for_leaves_the_cores_to_others() -> None:
    hurried, yielding = (int(enclosed.run(["nice"], limit=60, yields=yields).stdout) for yields in (False, True))
    assert hurried < yielding


def test_copies_and_comparisons_have_their_minutes(tmp_path: Path) -> None:
    homes = LocalHomes(Settings(home=tmp_path / "refit"))
    session = session_in(homes)
    (folder_of(session.home) / "data").write_bytes(bytes(300 << 20))
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
