"""Containers that sessions had before they moved: kept for a while, stopped, for those who want to go back to theirs.

With its container a session has back what somebody installed in it as root. Only those are kept whose home comes into
a slot: a person who starts one by hand gets one that waits, not a second one that writes into the home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from flows.core.database import now
from flows.core.leases import LeaseTaken
from flows.migrations.journal import Journal
from flows.migrations.move import Move
from flows.migrations.move_steps import FINAL, State
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running, Session


def is_kept(move: Move, hours: float) -> bool:
    """Whether the old container of a move outlives it. Pure."""
    return hours > 0 and move.before.late_home


def goes_back(move: Move) -> bool:
    """Whether a move leads to a container that the session has had before. Pure."""
    return move.after.generation < move.before.generation


def had(after: Session, containers: Iterable[Container], generation: int) -> Session | None:
    """The session as one of its former containers was made, if that differs from `after` in nothing but its generation.

    Pure.

    Args:
        after: the session as it is to be.
        containers: all that it has.
        generation: the one that it has now.
    """
    for container in containers:
        session = container.made_from
        former = container.generation < generation and container.running is not Running.running
        if session and former and session == replace(after, generation=session.generation):
            return session
    return None


def outlived(containers: Iterable[Container], moves: Iterable[Move], oldest: datetime) -> tuple[Container, ...]:
    """The former containers of one session that nobody needs any more. Pure.

    Args:
        containers: all that the session has.
        moves: all its moves, oldest first.
        oldest: containers of moves that had ended before are not kept any longer.
    """
    past = tuple(moves)
    if any(move.state not in FINAL or move.state is State.held for move in past[-1:]):
        return ()
    left = {move.before.container: move.ended for move in past if move.state is State.cleaned}
    return tuple(
        container
        for container in containers
        if container.running is not Running.running and (since := left.get(container.name)) and since <= oldest
    )


def clear(sessions: Sessions, journal: Journal, hours: float) -> tuple[str, ...]:
    """Remove the former containers whose time is over; returns their names. Sessions on which somebody acts are left.

    Raises:
        RefitError: engine or database doesn't answer.
    """
    oldest, removed = now() - timedelta(hours=hours), list[str]()
    for name in _with_others(sessions):
        try:
            with sessions.alone(name, wait=0):
                removed += _clear(sessions, journal, name, oldest)
        except LeaseTaken:
            continue
    return tuple(removed)


def _with_others(sessions: Sessions) -> list[str]:
    """The sessions that have more containers than their own."""
    current: Mapping[str, str] = {session.name: session.container for session in sessions.store.sessions()}
    others = (each for each in sessions.engine.containers() if each.name != current.get(each.session, each.name))
    return sorted({each.session for each in others})


def _clear(sessions: Sessions, journal: Journal, name: str, oldest: datetime) -> list[str]:
    if (record := sessions.store.find(name)) is None:
        return []
    others = (each for each in sessions.engine.containers(name) if each.name != record[0].container)
    names = [each.name for each in outlived(others, journal.history(name), oldest)]
    for container in names:
        sessions.engine.remove(container)
    return names
