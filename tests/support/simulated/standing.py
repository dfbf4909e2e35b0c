"""A run of a move stands still for longer than its lease, another one takes over, and the first one wakes up.

Both act on the same world, which sees what never may happen.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Event, Thread

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.leases import Lease, LeaseLost, renewal_of
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Move
from flows.migrations.move_steps import FINAL
from flows.migrations.planning.rollout import Decision
from flows.migrations.recovery import recover_all
from tests.support.simulated.engine import SimulatedSessions
from tests.support.simulated.fleet import Fleet, MortalJournal
from tests.support.simulated.world import Point
from tests.support.waiting import PATIENCE, wait_until

# Whether the first run, or a thread of it, is at it.
_FIRST: ContextVar[bool] = ContextVar("first", default=False)


@dataclass
class Standing:
    """The first run stands still at its moment `at`, and goes on at the moment `until` of the other (none: its end)."""

    at: int
    until: int | None
    passed: int = 0
    others: int = 0
    where: str = ""
    stands: Event = field(default_factory=Event)
    goes_on: Event = field(default_factory=Event)
    ended: Event = field(default_factory=Event)

    def __call__(self, point: Point) -> None:
        if _FIRST.get():
            self.passed += 1
            if self.passed == self.at:
                self.where = f"{point.verb} ({point.when})"
                self.stands.set()
                assert self.goes_on.wait(PATIENCE)
        elif self.stands.is_set():
            self.others += 1
            if self.others == self.until:
                self.wake()

    def wake(self) -> None:
        """Let the first run go on to its end."""
        self.goes_on.set()
        assert self.ended.wait(PATIENCE)


@dataclass
class First:
    """The run that is to stand still, in a thread with a database of its own in which nothing renews its lease."""

    fleet: Fleet
    line: Decision
    standing: Standing
    error: BaseException | None = None

    def begin(self) -> Thread:
        thread = Thread(target=self._run)
        thread.start()
        return thread

    def _run(self) -> None:
        _FIRST.set(True)
        database = open_database(self.fleet.settings.database)
        renewal = renewal_of(database)
        renewal._renew_due = lambda _: _never(renewal._due)  # type: ignore[method-assign]
        sessions = SimulatedSessions(self.fleet.settings, self.fleet.world, database)
        try:
            MoveExecutor(self.fleet.settings, sessions, MortalJournal(database, self.fleet.world)).carry_out(self.line)
        except BaseException as error:
            self.error = error
        finally:
            database.dispose()
            self.standing.ended.set()


def _never(due: dict[Lease, float]) -> None:
    due |= dict.fromkeys(due, time.monotonic() + 3600)


def taken_over(fleet: Fleet, line: Decision, at: int, until: int | None, check: Callable[[], object]) -> str:
    """Move a session by a run that stands still at its moment `at` and one that takes over; check what comes of it.

    Returns where the first run stood; empty: it came to its end before that moment.
    """
    standing = Standing(at, until)
    first = First(fleet, line, standing)
    fleet.world.stands = standing
    thread = first.begin()
    try:
        wait_until(lambda: standing.stands.is_set() or standing.ended.is_set())
        if standing.ended.is_set():
            return ""
        _take_over(fleet, line)
        check()
        before, lines = _seen(fleet, line), _journal(fleet, line)
        standing.wake()
        assert isinstance(first.error, LeaseLost) or first.error is None, repr(first.error)
        assert (_seen(fleet, line), _journal(fleet, line)) == (before, lines), (
            f"changed by who stood at {standing.where}"
        )
        check()
        return standing.where
    finally:
        standing.goes_on.set()
        thread.join()
        fleet.world.stands = lambda _: None


def _take_over(fleet: Fleet, line: Decision) -> None:
    """As the next run does, as soon as the lease has run out."""

    executor = fleet.executor()

    def over() -> bool:
        moves = fleet.journal.history(line.session)
        if moves and all(move.state in FINAL for move in moves):
            return True
        try:
            recover_all(executor) if moves else executor.carry_out(line)
        except RefitError as error:
            assert "lease" in str(error), error
        return False

    wait_until(over)


def _journal(fleet: Fleet, line: Decision) -> list[tuple[Move, object]]:
    return [(move, fleet.journal.entries(move)) for move in fleet.journal.history(line.session)]


def _seen(fleet: Fleet, line: Decision) -> object:
    """All that there is of a session: containers, home, snapshots, record, notes of what runs."""
    world, name = fleet.world, line.session
    return copy.deepcopy(
        (
            world.of(name),
            world.homes[str(fleet.home(name))],
            [(key, content) for key, content in world.snapshots.items() if key[0] == name],
            fleet.sessions.store.find(name),
            sorted((fleet.settings.home / "running").glob(f"session-{name}*")),
        )
    )
