"""A person's actions on the snapshots of a session. Each verb is given who wants it, for the record.

Whether that person may is the caller's to know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from flows.core.errors import RefitError
from flows.core.leases import LeaseTaken
from flows.migrations.journal import Journal
from flows.migrations.move_steps import FINAL
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.snapshots import take as taking
from flows.sessions.snapshots.model import Kind, Snapshot
from flows.sessions.snapshots.records import SnapshotRecords


@dataclass(frozen=True)
class Listed:
    """A snapshot, and what can be seen of it now.

    Attributes:
        snapshot: as it was taken.
        size: bytes that come back if it is removed; none: nobody knows.
        changed: paths that aren't as in it any more; none: `refit session diff` finds it out.
    """

    snapshot: Snapshot
    size: int | None
    changed: tuple[str, ...] | None


def take(sessions: Sessions, name: str, by: str, *, called: str = "", note: str = "") -> Snapshot:
    """Take a snapshot of a session, which may run.

    Args:
        sessions: those of this machine.
        name: the session.
        by: the person who wants it.
        called: what the snapshot shall be called; empty: by the moment, and retention removes it some day.
        note: of that person.

    Raises:
        RefitError: there is no such session, a move of it is not finished, the name can't be or is taken, or there is
            no room; nothing is left of it.
    """
    with _at_rest(sessions, name) as session:
        return taking.take(sessions, session, Kind.named if called else Kind.unnamed, by, name=called, note=note)


def cost(sessions: Sessions, name: str) -> int:
    """Bytes that a snapshot of this session would copy; 0: it shares all with the home.

    Raises:
        RefitError: there is no such session, or it can't be copied.
    """
    return sessions.homes.snapshot_cost(sessions.store.session(name))


def listed(sessions: Sessions, name: str) -> tuple[Listed, ...]:
    """The snapshots of a session, oldest first, with what can be seen of them now.

    Raises:
        UnknownName: there is no such session.
    """
    session, records = sessions.store.session(name), SnapshotRecords(sessions.store.database)
    found = [one for one in records.all(name) if sessions.homes.has_snapshot(name, one.id)]
    changed: dict[str, tuple[str, ...] | None] = {}
    with suppress(LeaseTaken, RefitError), sessions.alone(name, wait=0):  # somebody acts on it: later, then
        changed = {one.id: sessions.homes.touched(session, one.id) for one in found}
    homes = sessions.homes
    sizes = {one.id: one.size if one.size is not None else homes.own_size(session, one.id) for one in found}
    return tuple(Listed(one, sizes[one.id], changed.get(one.id)) for one in found)


def remove(sessions: Sessions, name: str, snapshot: str, by: str) -> Snapshot:
    """Remove a snapshot for good; returns which it was.

    Raises:
        UnknownName: there is no such session, or no such snapshot of it.
        RefitError: a move of the session is not finished.
    """
    with _at_rest(sessions, name):
        chosen = SnapshotRecords(sessions.store.database).one(name, snapshot)
        taking.remove(sessions, chosen, by)
        return chosen


@contextmanager
def _at_rest(sessions: Sessions, name: str) -> Iterator[Session]:
    """Be the only one who acts on a session, of which no move is under way."""
    sessions.store.session(name)
    with sessions.alone(name):
        last = Journal(sessions.store.database).last(name)
        if last and last.state not in FINAL:
            raise RefitError(f"A move of {name!r} is not finished.", hint="finish it: `refit migrate recover`.")
        yield sessions.store.session(name)
