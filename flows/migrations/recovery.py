"""Recovery of moves: those that a crash interrupted are brought to their end, and held ones are tried once more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from flows.core.errors import RefitError, UnknownName
from flows.core.leases import LeaseTaken
from flows.core.threads import at_once
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Entry, Move, Phase, unsettled
from flows.migrations.move_steps import FINAL, State
from flows.migrations.results import NotRecovered, Result
from flows.migrations.steps import unattended

logger = logging.getLogger("refit.migrations")


def recover_all(executor: MoveExecutor, moves: Iterable[Move] | None = None) -> tuple[Result, ...]:
    """Bring every unfinished move to its end, forwards or backwards; those that another run works on are left.

    They go side by side: a failure or a delay of one is no other's.

    Args:
        moves: those to see to; all, if not given.

    Raises:
        NotRecovered: some could not be recovered just now; it was tried with all.
    """
    unfinished = tuple(executor.journal.unfinished() if moves is None else moves)
    if not unfinished:
        return ()
    ended = at_once(
        partial(_recovered, executor), unfinished, executor.sessions.engine.at_once, within=executor.leaving()
    )
    results = tuple(end for end in ended if isinstance(end, Result))
    if problems := {move.before.name: end for move, end in zip(unfinished, ended, strict=True) if isinstance(end, str)}:
        raise NotRecovered(problems, results)
    return results


def _recovered(executor: MoveExecutor, move: Move) -> Result | str | None:
    """As `recover`; why it can't be done, in words."""
    try:
        return recover(executor, move)
    except RefitError as error:
        return str(error)
    except Exception as error:
        logger.exception("%s could not be recovered", move.id)
        return f"{type(error).__name__}: {error}"


def recover(executor: MoveExecutor, move: Move) -> Result | None:
    """Bring one move to its end, forwards or backwards; none: it has ended, or another run works on it.

    Raises:
        RefitError: that can't be done just now.
    """
    try:
        with executor.sessions.alone(move.before.name, wait=0) as held:
            if (move := executor.journal.take_over(move.id)).state in FINAL:
                return None
            step, happened = unsettled(executor.journal.entries(move)), executor.unseen(move)
            if step or happened:
                note = unattended.TEXTS[happened] if happened else "processes of it that still ran were ended"
                executor.journal.write(held, move, Entry(step, Phase.interrupted, note, code=happened))
            return executor.drive(held, move, executor.on_record(move))
    except LeaseTaken:
        return None


def reopen(executor: MoveExecutor, session: str) -> Result | None:
    """Try once more to end the held move of a session; none if its latest move is not held.

    Raises:
        UnknownName: it was never moved.
        RefitError: another run holds the session.
    """
    with executor.sessions.alone(session) as held:
        if (move := executor.journal.last(session)) is None:
            raise UnknownName("move of a session", session, executor.journal.latest())
        if move.state is not State.held:
            return None
        happened = executor.unseen(move)
        note = unattended.TEXTS[happened] if happened else ""
        executor.journal.write(held, move, Entry("", Phase.reopened, note, code=happened))
        return executor.drive(held, move, executor.on_record(move))
