"""Differences for a user who isn't root: programs run by sudo, and nobody's signals reach them but sudo's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import pytest

from flows.core.programs import process_records
from flows.core.settings import Settings
from flows.images.builder.workspace import mounts
from tests.support.machine import private_home
from tests.support.ordinary_user import User, somebody
from tests.support.prefect_api import FINAL, prefect_client
from tests.support.services import ENDLESS, launch, pids
from tests.support.waiting import PATIENCE, free_port, wait_until

WAITING = f'echo $$ >>"$1"; sleep {ENDLESS} & echo $! >>"$1"; wait'


@pytest.fixture
def user() -> Iterator[User]:
    # pytest's own folders are closed to others.
    with TemporaryDirectory(prefix="refit-user-") as name:
        folder = Path(name)
        yield User(folder, Path(sys.executable)) if os.geteuid() != 0 else somebody(folder)


def left(note: Path) -> list[int]:
    return [pid for pid in pids(note) if process_records.ProcessId.of(pid)]


THREADED = f"""
import signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from flows.core.programs import command

def leave(*_):
    raise SystemExit(7)

signal.signal(signal.SIGTERM, leave)
with ThreadPoolExecutor() as pool, command.terminating_children():
    for note in sys.argv[1:]:
        pool.submit(command.run, ["sh", "-c", {WAITING!r}, "sh", note], root=True)
    while True:
        time.sleep(0.05)  # signal.pause() would sleep through a signal that comes right before it
"""


def test_a_signal_ends_what_all_threads_run_as_root(user: User, tmp_path: Path) -> None:
    notes = [tmp_path / name for name in "ab"]
    process = user.starts(THREADED, *notes)
    wait_until(lambda: [len(pids(note)) for note in notes] == [2, 2])
    assert {psutil.Process(pid).uids().real for note in notes for pid in pids(note)} == {0}
    assert psutil.Process(process.pid).uids().real != 0
    process.terminate()
    assert process.wait(PATIENCE) == 7
    wait_until(lambda: [left(note) for note in notes] == [[], []])


BUILDING = f"""
import sys
from flows.core import settings
from flows.core.programs import command
from flows.host import tools
from flows.images.builder.workspace import workspace
mine = settings.load()
with workspace(mine):
    container = command.run([*tools.buildah(mine), "from", "scratch"], root=True).stdout.strip()
    command.run([*tools.buildah(mine), "mount", container], root=True)
    command.run(["sh", "-c", {WAITING!r}, "sh", sys.argv[1]], root=True)
"""
RECOVERING = (
    "from flows.core import settings; from flows.images.builder.workspace import recover; "
    "print(recover(settings.load()))"
)


def test_what_a_killed_build_ran_as_root_is_ended_and_removed_by_the_next(user: User, tmp_path: Path) -> None:
    with private_home(user.home, free_port()) as settings:
        note = tmp_path / "pids"
        process = user.starts(BUILDING, note)
        wait_until(lambda: len(pids(note)) == 2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert len(left(note)) == 2
        assert user.runs(RECOVERING) == "1\n"
        assert not left(note) and not mounts(settings)
        assert list((settings.home / "running").iterdir()) == []
        assert user.runs(RECOVERING) == "0\n"


UP = """
import os
from flows import services
from flows.core import settings
from tests.support import trial_worker
mine = settings.load()
trial_worker.install()
services.up(mine)
os.environ.update(services.prefect_environment(mine))
from flows.orchestration.deployments import deploy
from tests.support.trial_flow import trial
deploy([trial])
"""
DOWN = "from flows import services; from flows.core import settings; services.down(settings.load())"


@pytest.fixture
def prefect(user: User) -> Iterator[httpx.Client]:
    """Prefect, its worker and the flow `trial`, all of them that user's."""
    settings = Settings(home=user.home, prefect_port=free_port(), registry="127.0.0.1:1", gateway=False)
    user.environment.update({"REFIT_PREFECT_PORT": str(settings.prefect_port), "REFIT_REGISTRY": settings.registry})
    user.environment["REFIT_GATEWAY"] = "false"
    try:
        user.runs(UP)
        with prefect_client(settings) as client:
            yield client
    finally:
        user.runs(DOWN)


def test_cancelling_ends_the_programs_that_a_run_runs_as_root(prefect: httpx.Client, user: User) -> None:
    note = user.folder / "pids"
    run = launch(prefect, seconds=ENDLESS, note=str(note), in_a_thread=True, root=True)
    wait_until(lambda: len(pids(note)) == 2)
    assert {psutil.Process(pid).uids().real for pid in pids(note)} == {0}
    run.cancel()
    wait_until(lambda: run.state() in FINAL)
    assert run.state() == "CANCELLED"
    wait_until(lambda: not left(note))


HOMES = """
from pathlib import Path
from flows.core import settings
from flows.core.programs import command
from flows.catalog.model import Access
from flows.sessions.homes.home import LocalHomes
from flows.sessions.model import Session, TokenRef
homes = LocalHomes(settings.load())
home, uid = homes.make("ana", 234_571), "234571"
as_owner = ["setpriv", f"--reuid={uid}", "--regid=0", "--clear-groups", "sh", "-euc"]
session = Session("ana", "p", "2026a", "sha256:0", 234_571, home, TokenRef("/token"), Access())

def act(script):
    command.run(["env", "-C", home, *as_owner, script], root=True)

act("echo one >notes; truncate -s 1T holes; mkdir -m 000 closed")
homes.check_room(session)
homes.copy(session, "move")
homes.delta(session, "move")
print(homes.differences(session, "move"))
act("rm holes; echo two >notes; rmdir closed")
print(sorted(homes.differences(session, "move")))
homes.restore(session, "move")
print(homes.differences(session, "move"))
homes.remove("ana")
print(Path(home).exists())
"""


def test_homes_are_copied_compared_brought_back_and_removed_by_sudo(user: User) -> None:
    said = user.runs(HOMES).splitlines()
    assert said == ["()", "['changed: notes', 'gone: closed/', 'gone: holes']", "()", "False"]
