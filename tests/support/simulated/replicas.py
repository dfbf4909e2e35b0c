"""Two processes that carry moves out with one database: never both of one session, and none that was taken for dead."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psutil

from flows.core.errors import RefitError
from flows.core.leases import LeaseLost
from flows.migrations.move_steps import State
from flows.migrations.recovery import recover_all
from flows.sessions.history import History
from tests.support.simulated.fleet import Fleet, fleet
from tests.support.simulated.world import Point
from tests.support.waiting import PATIENCE, wait_until

SESSIONS, TAKEN_OVER, FENCED = 12, 120.0, 7
# Seconds for which leases of sessions last: a process that stands still for longer is taken for dead.
LEASE = 4.0


def replica(folder: Path, url: str, work: Callable[[Fleet], None], others: Barrier | None = None) -> BaseProcess:
    """A process of its own, with a home, a registry and an engine of its own, that knows all sessions on record.

    Args:
        folder: of its home.
        url: of the database.
        work: the function that it runs.
        others: it begins together with the processes that have the same.
    """
    process = get_context("fork").Process(target=_replica, args=(folder, url, work, others))
    process.start()
    return process


def _replica(folder: Path, url: str, work: Callable[[Fleet], None], others: Barrier | None) -> None:
    with fleet(folder, url, LEASE) as mine:
        mine.image("old")
        for session in mine.sessions.store.sessions():
            mine.adopt(session)
        fenced = False
        if others:
            others.wait(PATIENCE)
        try:
            work(mine)
        except LeaseLost:
            fenced = True
        (folder / "starts.json").write_text(json.dumps(_started(mine)))
        os._exit(FENCED if fenced else 0)


def _started(mine: Fleet) -> list[str]:
    """The new containers that were started here."""
    return [box.session.container for box in mine.world.of("") if box.writes and box.session.generation > 1]


def move_all(mine: Fleet) -> None:
    new = mine.image("new")
    for session in mine.sessions.store.sessions():
        with suppress(RefitError):  # another process has it just now
            mine.executor().carry_out(mine.to(session, new))


def move_and_stand_still(mine: Fleet) -> None:
    """In mid-move, this process stands still until somebody lets it go on."""

    def meanwhile(point: Point) -> None:
        if (point.verb, point.when) == ("snapshot", "before"):
            os.kill(os.getpid(), signal.SIGSTOP)

    mine.world.meanwhile = meanwhile
    [session] = mine.sessions.store.sessions()
    mine.executor().carry_out(mine.to(session, mine.image("new")))


def take_over(mine: Fleet) -> None:
    deadline = time.monotonic() + TAKEN_OVER
    while not recover_all(mine.executor()) and time.monotonic() < deadline:
        time.sleep(0.5)


def check_that_one_acts(folder: Path, url: str) -> None:
    """Both begin to move the same sessions at once; each is moved once, by one of them."""
    with fleet(folder / "owner", url) as owner:
        old = owner.image("old")
        for number in range(SESSIONS):
            owner.add(number, old)
        together = get_context("fork").Barrier(2)
        both = [replica(folder / name, url, move_all, together) for name in ("one", "two")]
        for process in both:
            process.join()
        assert [process.exitcode for process in both] == [0, 0]
        starts = Counter[str]()
        for name in ("one", "two"):
            starts.update(json.loads((folder / name / "starts.json").read_text()))
        assert starts == {f"refit-s{number}-2": 1 for number in range(SESSIONS)}
        moves = owner.journal.history()
        assert [move.state for move in moves] == [State.cleaned] * SESSIONS
        assert not History(owner.database).broken()


def check_that_who_was_taken_for_dead_does_nothing_more(folder: Path, url: str) -> None:
    with fleet(folder / "owner", url, LEASE) as owner:
        owner.add(1, owner.image("old"))
        still = replica(folder / "still", url, move_and_stand_still)
        wait_until(lambda: psutil.Process(still.pid).status() == psutil.STATUS_STOPPED)
        other = replica(folder / "other", url, take_over)
        other.join()
        [move] = owner.journal.history()
        assert other.exitcode == 0 and move.state in (State.cleaned, State.rolled_back), move.reason
        lines = owner.journal.entries(move)
        assert still.pid
        os.kill(still.pid, signal.SIGCONT)
        still.join()
        assert still.exitcode == FENCED
        assert json.loads((folder / "still" / "starts.json").read_text()) == []
        assert owner.journal.entries(move) == lines and not History(owner.database).broken()
