"""Moves whose run was killed: nobody gets into their sessions, or these are away, and nobody is there to end that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.leases import LeaseTaken, held
from flows.migrations.journal import Journal
from flows.migrations.move import LOOK_AGE, Entry, Move, Phase
from flows.migrations.move_steps import StepName
from flows.migrations.results import Result
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running

# Services look for such moves all the time, and seldom is there one.
with lazily(globals()):
    from flows.migrations.executor import MoveExecutor
    from flows.migrations.recovery import recover_all

logger = logging.getLogger("refit.migrations")

# The person who has killed a run may be about to begin the next, which goes on at once.
PATIENCE = timedelta(seconds=60)


def left_closed(entries: Sequence[Entry], at: datetime) -> bool:
    """Whether a move on which nobody works has closed its session, and may neither stop it now nor has opened it. Pure.

    A run that takes the move up again has to look anew, and so to close it anew: to open it meanwhile harms nobody.
    """
    begun = {entry.step for entry in entries if entry.phase is Phase.intent}
    opened = Entry(StepName.reopen, Phase.done) in entries
    last = max((entry.at for entry in entries if entry.step == StepName.look and entry.at), default=at)
    return StepName.look in begun and StepName.stop not in begun and not opened and at - last > LOOK_AGE


def left_away(entries: Sequence[Entry], at: datetime) -> bool:
    """Whether a move on which nobody works has stopped its session, and nothing has come of it for a while. Pure."""
    stopped = Entry(StepName.stop, Phase.intent) in entries
    last = max((entry.at for entry in entries if entry.at), default=at)
    return stopped and at - last > PATIENCE


def end_abandoned(journal: Journal, executor: Callable[[], MoveExecutor], at: datetime) -> tuple[Result, ...]:
    """End the moves that have left their sessions away, forwards or backwards; those of others wait for the next run.

    Raises:
        RefitError: one could not be ended just now; the others were tried.
    """
    abandoned = [move for move in interrupted(journal) if left_away(journal.entries(move), at)]
    return recover_all(executor(), abandoned) if abandoned else ()


class IngressReopener:
    """Opens such sessions again, each once: the end of their moves is left to the next run."""

    def __init__(self, sessions: Sessions, journal: Journal) -> None:
        self._sessions, self._journal = sessions, journal
        self._opened: set[tuple[str, int]] = set()

    def open(self, at: datetime) -> tuple[str, ...]:
        """Open those that are closed at that moment; the names of those that are open again."""
        return tuple(move.before.name for move in interrupted(self._journal) if self._open(move, at))

    def _open(self, move: Move, at: datetime) -> bool:
        entries, name = self._journal.entries(move), move.before.name
        if (move.id, len(entries)) in self._opened or not left_closed(entries, at):
            return False
        try:
            with self._sessions.alone(name, wait=0):
                if self._journal.entries(move) != entries:  # somebody has gone on with it until just now
                    return False
                if self._runs(move):
                    self._sessions.engine.allow_ingress(move.before.container)
        except LeaseTaken:
            return False
        except RefitError as error:
            logger.warning("%s can't be opened again: %s", name, error)
            return False
        self._opened.add((move.id, len(entries)))
        return True

    def _runs(self, move: Move) -> bool:
        containers = self._sessions.engine.containers(move.before.name)
        return any(each.name == move.before.container and each.running is Running.running for each in containers)


def interrupted(journal: Journal) -> tuple[Move, ...]:
    """The moves that have not ended and on which nobody works, oldest first."""
    at_work = held(journal.database, "session ")
    return tuple(move for move in journal.unfinished() if f"session {move.before.name}" not in at_work)
