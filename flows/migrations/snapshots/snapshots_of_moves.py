"""Snapshots of homes that moves have kept, for changes that only a person may take back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flows.core.errors import RefitError, UnknownName
from flows.core.progress import reported
from flows.migrations.journal import Journal
from flows.migrations.move_steps import FINAL
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.sessions.snapshots.records import SnapshotRecords


@dataclass(frozen=True)
class Kept:
    """A snapshot of the home of a session, with its own volumes, from right after a move had stopped it.

    Attributes:
        session: its name.
        id: of the snapshot, and of the move.
        at: when the move began.
        why: how that ended.
        folder: where it is, as a person is told.
    """

    session: str
    id: str
    at: datetime
    why: str
    folder: str


def kept(sessions: Sessions, journal: Journal, name: str = "") -> tuple[Kept, ...]:
    """The snapshots of a session, or of all, oldest first; none of those that a move is still about."""
    homes = sessions.homes
    return tuple(
        Kept(session, move.id, move.created, move.reason, homes.snapshot_place(session, move.id))
        for move in journal.history(name)
        if move.state in FINAL and homes.has_snapshot(session := move.before.name, move.id)
    )


def take_back(sessions: Sessions, journal: Journal, name: str, id: str) -> None:
    """Make home and volumes of a session that is stopped what they are in a snapshot; later changes are lost.

    The snapshot stays, so that whoever is interrupted does it again.

    Raises:
        UnknownName: there is no such session, or no such snapshot of it.
        RefitError: it runs, or a move of it is not finished.
    """
    session = sessions.store.session(name)
    with sessions.alone(name), reported(name, "taking its home back"):
        _check(sessions, journal, name, id)
        if any(container.running is Running.running for container in sessions.engine.containers(name)):
            raise RefitError(f"The session {name!r} runs.", hint=f"stop it first: `refit session stop {name}`.")
        sessions.homes.restore(session, id)


def drop(sessions: Sessions, journal: Journal, name: str, id: str) -> None:
    """Remove a snapshot for good.

    Raises:
        UnknownName: there is none of that name.
        RefitError: a move of the session is not finished.
    """
    with sessions.alone(name):
        _check(sessions, journal, name, id)
        sessions.homes.forget(name, id)
        SnapshotRecords(sessions.store.database).forget(id)


def _check(sessions: Sessions, journal: Journal, name: str, id: str) -> None:
    if journal.unfinished(name):
        raise RefitError(f"A move of {name!r} is not finished.", hint="finish it: `refit migrate recover`.")
    ids = [snapshot.id for snapshot in kept(sessions, journal, name)]
    if id not in ids:
        raise UnknownName("snapshot", id, ids, where=f"what was kept of {name}")
