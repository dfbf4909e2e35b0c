"""A run that was taken for dead and wakes up does nothing more: no effect, and no tidying either."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import psutil
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as Transaction

from flows.catalog.model import Access
from flows.core import fence
from flows.core.database import open_database, write
from flows.core.leases import Lease, LeaseLost, LeaseRow, _take, held, lease, renewal_of, still_ours
from flows.core.programs import command, process_records
from flows.core.settings import Settings
from flows.gateway.proxy import Gateway
from flows.images.manifests import MANIFEST
from flows.images.registry import Registry
from flows.migrations.executor import LEFT
from flows.migrations.move import Phase
from flows.migrations.move_steps import OF_EVERY_MOVE, State
from flows.migrations.recovery import recover_all
from flows.migrations.rehearsals.rehearsal import sweep
from flows.migrations.results import NotRecovered
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.ssh.forwarder import Forwarder
from flows.sessions.trial import named
from tests.support.processes import in_a_process
from tests.support.simulated.engine import SimulatedHomes
from tests.support.simulated.fleet import ACCESS, LATE, Fleet, fleet
from tests.support.simulated.replicas import check_that_who_was_taken_for_dead_does_nothing_more
from tests.support.simulated.standing import _never, taken_over
from tests.support.simulated.upsets import IMAGES, Upsets, _check
from tests.support.simulated.world import Image, Killed, Point, World
from tests.support.waiting import PATIENCE, free_port, wait_until

LEASE = 0.15


@pytest.fixture
def sessions() -> Iterator[Fleet]:
    """In memory: hundreds of moves would wait for a disk most of the time."""
    with TemporaryDirectory(dir="/dev/shm") as folder, fleet(Path(folder), lease_seconds=LEASE) as simulated:
        yield simulated


def walked(fleet: Fleet, kind: str, image: Image, access: Access, until: int | None, every: int) -> list[str]:
    """Stand still at every so many moments of a move once; returns where."""
    places = []
    for at in range(1, 1000, every):
        session = fleet.add(at, fleet.image("old"), access)
        line = fleet.to(session, fleet.image(kind, image))
        upsets = Upsets(fleet, session, {})

        def check(session: object = session, upsets: Upsets = upsets) -> None:
            _check(fleet, session, upsets)  # type: ignore[arg-type]
            assert not list((fleet.settings.home / "running").iterdir())
            assert not fleet.world.violations

        if not (where := taken_over(fleet, line, at, until, check)):
            return places
        places.append(where)
    raise AssertionError("the move has no end")


LONG = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "access", "until", "every"),
    [
        ("good", LATE, 6, 4),
        ("writes into the home", LATE, 6, 5),
        pytest.param("good", LATE, 6, 1, marks=LONG),
        pytest.param("writes into the home", LATE, 6, 1, marks=LONG),
        pytest.param("good", LATE, None, 1, marks=LONG),
        pytest.param("good", ACCESS, 6, 1, marks=LONG),
        pytest.param("never ready", LATE, None, 1, marks=LONG),
        pytest.param("writes into the home", ACCESS, 12, 1, marks=LONG),
    ],
)
def test_a_run_that_stood_still_at_any_moment_does_nothing_more(
    sessions: Fleet, kind: str, access: Access, until: int | None, every: int
) -> None:
    places = walked(sessions, kind, IMAGES[kind], access, until, every)
    effects = {place.partition(" (")[0] for place in places}
    assert len(places) * every > 80 and (every > 1 or {"create", "stop", "snapshot", "start", "forget"} <= effects)


def cut_short(fleet: Fleet, session: Session) -> None:
    """Leave a move of it behind as a run that was killed does."""

    def killed(point: Point) -> None:
        if (point.verb, point.when) == ("copy", "after"):
            fleet.world.alive = False
            raise Killed

    fleet.world.meanwhile = killed
    with pytest.raises(Killed):
        fleet.executor().carry_out(fleet.to(session, fleet.image("new")))
    fleet.world.meanwhile = lambda _: None


@pytest.mark.slow
def test_one_sessions_trouble_ends_nobody_elses_resume_and_one_that_hangs_holds_nobody(sessions: Fleet) -> None:
    for number in (1, 2, 3):
        cut_short(sessions, sessions.add(number, sessions.image("old"), LATE))
    executor, journal, goes_on = sessions.executor(), sessions.journal, Event()

    def stands(point: Point) -> None:
        if point.session == "s1":
            raise FileNotFoundError("running/session-s1")
        if point.session == "s2":
            assert goes_on.wait(PATIENCE)

    sessions.world.stands = stands
    with ThreadPoolExecutor(1) as pool:
        resumed = pool.submit(recover_all, executor)
        wait_until(lambda: [move.before.name for move in journal.unfinished()] == ["s1", "s2"])
        goes_on.set()
        with pytest.raises(NotRecovered, match="running/session-s1") as caught:
            resumed.result()
    assert set(caught.value.problems) == {"s1"}
    assert [(one.session, one.moved) for one in caught.value.results] == [("s2", True), ("s3", True)]
    sessions.world.stands = lambda _: None
    [result] = recover_all(executor)
    assert result.moved


@pytest.mark.slow
@pytest.mark.parametrize("step", [step.name for step in OF_EVERY_MOVE])
def test_a_run_that_is_told_to_end_begins_no_further_step(sessions: Fleet, step: str) -> None:
    session = sessions.add(1, sessions.image("old"), LATE)
    executor, stands, told = sessions.executor(), Event(), Event()

    def stand(_: Point) -> None:
        if sessions.world.step == step and not told.is_set():
            stands.set()
            assert told.wait(PATIENCE)

    sessions.world.stands = stand
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(executor.carry_out, sessions.to(session, sessions.image("new")))
        wait_until(stands.is_set)
        with suppress(KeyboardInterrupt), executor.leaving():
            raise KeyboardInterrupt
        told.set()
        result = run.result()
    [move] = sessions.journal.history(session.name)
    begun = [entry.step for entry in sessions.journal.entries(move) if entry.phase is Phase.intent]
    forward = [one for one in begun if one in {each.name for each in OF_EVERY_MOVE}]
    if step in ("commit", "clean"):
        assert result.moved and forward[-1] == "clean"
    else:
        assert (result.state, result.reason, forward[-1]) == (State.deferred, LEFT, step)
    _check(sessions, session, Upsets(sessions, session, {}))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path}/refit.db")
    yield engine
    engine.dispose()


@contextmanager
def held_until_taken(engine: Engine, name: str = "it") -> Iterator[Callable[[], None]]:
    """Hold a lease that is renewed by nobody; the `with` block gets what lets another one take it."""
    with lease(engine, name, seconds=LEASE):
        renewal = renewal_of(engine)
        renewal._renew_due = lambda _: _never(renewal._due)  # type: ignore[method-assign]
        yield lambda: wait_until(lambda: _take(engine, name, "another one", 600.0))


def _until(engine: Engine, name: str) -> datetime:
    """Until when a lease holds that nobody else has taken."""
    with Transaction(engine) as transaction:
        return transaction.get_one(LeaseRow, name).until


@pytest.mark.slow
def test_what_ran_out_and_was_taken_by_nobody_is_renewed_and_what_was_taken_lets_nothing_through(
    database: Engine, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path / "home", registry_port=free_port())
    touch = ["touch", tmp_path / "touched"]
    with held_until_taken(database) as let_another_take:
        wait_until(lambda: not held(database, "it"))
        ran_out = _until(database, "it")
        command.run(touch)
        assert _until(database, "it") > ran_out
        let_another_take()
        for effect in (
            lambda: command.run(["rm", tmp_path / "touched"]),
            lambda: Registry(settings).put_manifest("images", "alias", b"{}", MANIFEST),
            lambda: Registry(settings).delete("images", f"sha256:{'0' * 64}"),
            lambda: Gateway(settings).route_to_waiting_page("ada"),
            lambda: Forwarder(settings).point(19_000, ""),
            lambda: write(database, still_ours),
        ):
            with pytest.raises(LeaseLost):
                effect()
        with fence.lifted():
            command.run(["mkdir", tmp_path / "tidied"])
    assert (tmp_path / "touched").exists() and (tmp_path / "tidied").exists()


def test_no_program_starts_any_more_once_the_record_of_its_holder_was_removed(tmp_path: Path) -> None:
    """Though it was asked for the lease before: its process finds no place to note itself."""
    notes, taken = tmp_path / "session-ada.7", Event()

    def lost() -> None:
        if taken.is_set():
            raise LeaseLost(Lease("session ada", "", 7))
        if not process_records.end_for_good(notes):  # in the very moment after the answer
            taken.set()

    with command.recorded(notes), fence.needing(lost), pytest.raises(LeaseLost):
        command.run(["touch", tmp_path / "touched"])
    assert not (tmp_path / "touched").exists() and not notes.exists()


def test_a_path_through_the_fence_leads_nowhere_once_another_has_taken_over(tmp_path: Path) -> None:
    notes, thing = tmp_path / "session-ada.7", tmp_path / "thing"
    notes.mkdir()
    with fence.way_in(notes):
        (way := fence.through(thing)).mkdir()
        assert thing.is_dir() and way != thing
        process_records.end_for_good(notes)
        with pytest.raises(FileNotFoundError):
            way.rmdir()
    assert thing.is_dir() and fence.through(thing) == thing


def test_locks_of_rehearsals_go_with_them(tmp_path: Path) -> None:
    """Also those of an older Refit, which bear the names of sessions that are gone."""
    settings = Settings(home=tmp_path / "home")
    homes, folder = SimulatedHomes(World(), tmp_path), settings.folder("rehearsals")
    (folder / "ada.lock").touch()
    with named(settings, "bob") as id:
        assert sweep(settings, homes) == () and [path.name for path in folder.iterdir()] == [f"{id}.lock"]
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_a_process_that_stood_still_wakes_up_beside_its_successor_and_does_not_touch_what_that_runs(
    tmp_path: Path,
) -> None:
    """Neither by what it goes on with, nor by its own tidying: both had bitten."""
    settings = Settings(home=tmp_path / "home", lease_seconds=1.0)
    sessions, touched = Sessions.open(settings), tmp_path / "touched"

    def stand() -> None:
        with Sessions.open(settings).alone("ada"):
            command.run(["sh", "-c", "sleep 300 & echo begun"])
            os.kill(os.getpid(), signal.SIGSTOP)
            command.run(["touch", touched])

    process = in_a_process(stand)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    with sessions.alone("ada", wait=PATIENCE) as mine, ThreadPoolExecutor(1) as pool:
        [folder] = settings.folder("running").iterdir()
        assert folder.name == f"session-ada.{mine.fence}"
        ends = tmp_path / "ends"
        ours = ["sh", "-c", f"until [ -e {ends} ]; do sleep 0.02; done"]
        goes_on = pool.submit(copy_context().run, command.run, ours)
        wait_until(lambda: process_records.noted(folder))
        assert process.pid
        os.kill(process.pid, signal.SIGCONT)
        process.join()
        ends.touch()
        assert process.exitcode == 1 and not touched.exists()
        assert goes_on.result().exit_code == 0
    assert not list(settings.folder("running").iterdir())


@pytest.mark.slow
def test_f07_a_process_that_stood_still_in_mid_move_and_wakes_up_does_nothing_more(tmp_path: Path) -> None:
    check_that_who_was_taken_for_dead_does_nothing_more(tmp_path, f"sqlite:///{tmp_path / 'refit.db'}")
