"""A person's actions on the snapshots of a session. Each verb is given who wants it, for the record.

Whether that person may is the caller's to know.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from flows.core.database import now
from flows.core.errors import RefitError, UnknownName
from flows.core.formatting import some
from flows.core.leases import LeaseTaken
from flows.migrations.journal import Journal
from flows.migrations.move import Move
from flows.migrations.move_steps import FINAL
from flows.sessions.events import Kind as Event
from flows.sessions.history import History
from flows.sessions.homes.volumes import parts
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.snapshots import take as taking
from flows.sessions.snapshots.model import Kind, Snapshot, from_note
from flows.sessions.snapshots.records import SnapshotRecords

MOST = 500  # snapshots of a session by people: each one is looked at whenever they are listed
LIST_SECONDS = 10.0  # for which a list looks up changes, and then sizes, the newest first


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
        called: the name of the snapshot; empty: it is named by the moment, and retention removes it some day.
        note: of that person.

    Raises:
        RefitError: there is no such session, a move of it is not finished, the name can't be or is taken, or there is
            no room, or it has as many as it may; nothing is left of it.
    """
    with _at_rest(sessions, name) as session:
        _check_number(sessions, session)
        return taking.take(sessions, session, Kind.named if called else Kind.unnamed, by, name=called, note=note)


def _check_number(sessions: Sessions, session: Session) -> None:
    if (count := len(SnapshotRecords(sessions.store.database).all(session.name))) >= MOST:
        raise RefitError(
            f"{session.name!r} has {count} snapshots, and may have no more than {MOST}.",
            hint=f"remove some that nobody needs: `refit session remove-snapshot {session.name} SNAPSHOT`.",
        )


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
    session = sessions.store.session(name)
    snapshots = all_of(sessions, session)
    changed: dict[str, tuple[str, ...] | None] = {}
    until = time.monotonic() + LIST_SECONDS
    with suppress(LeaseTaken, RefitError), sessions.alone(name, wait=0):  # somebody acts on it: later, then
        for snapshot in reversed(snapshots):
            if time.monotonic() >= until:  # a move may wait for the session
                break
            changed[snapshot.id] = sessions.homes.touched(session, snapshot.id)
    sizes, until = dict[str, int | None](), time.monotonic() + LIST_SECONDS
    for snapshot in reversed(snapshots):
        asks = snapshot.size is None and time.monotonic() < until
        sizes[snapshot.id] = sessions.homes.own_size(session, snapshot.id) if asks else snapshot.size
    return tuple(Listed(snapshot, sizes[snapshot.id], changed.get(snapshot.id)) for snapshot in snapshots)


def find(sessions: Sessions, name: str, snapshot: str) -> Snapshot:
    """A snapshot of a session: one that is on record, or one that a move has kept.

    Raises:
        UnknownName: there is no such session, or no such snapshot of it.
    """
    session = sessions.store.session(name)
    snapshots = all_of(sessions, session)
    if chosen := next((candidate for candidate in snapshots if snapshot in (candidate.name, candidate.id)), None):
        return chosen
    raise UnknownName("snapshot", snapshot, [other.name for other in snapshots], where=f"those of {name}")


def all_of(sessions: Sessions, session: Session) -> tuple[Snapshot, ...]:
    """The snapshots of a session that are there, oldest first; those that moves have kept are among them.

    A note beside a snapshot stands for its record where the database was lost.
    """
    database = sessions.store.database
    records = SnapshotRecords(database)
    on_record, unfinished = records.all(session.name), records.left(session.name)
    noted = (from_note(text, session.name) for text in sessions.homes.notes(session.name))
    by_id = {snapshot.id: snapshot for snapshot in (*filter(None, noted), *on_record) if snapshot.id not in unfinished}
    recorded = [snapshot for snapshot in by_id.values() if sessions.homes.has_snapshot(session.name, snapshot.id)]
    ids = {snapshot.id for snapshot in recorded}
    moves = [move for move in Journal(database).history(session.name) if move.state in FINAL and move.id not in ids]
    kept = [_of_move(move) for move in moves if sessions.homes.has_snapshot(session.name, move.id)]
    return tuple(sorted((*recorded, *kept), key=lambda snapshot: (snapshot.at, snapshot.id)))


def _of_move(move: Move) -> Snapshot:
    before = move.before
    volumes = tuple(part.volume for part in parts(before) if part.volume)
    made_of = (before.image, before.profile, before.release, volumes)
    return Snapshot(move.id, before.name, move.id, Kind.move, "", move.created, move.reason, *made_of)


def require_whole(session: Session, snapshot: Snapshot) -> None:
    """Find out whether a snapshot holds all that belongs to the session now: it goes back as one set.

    Raises:
        RefitError: it has volumes that aren't in the snapshot.
    """
    lacking = [part.volume for part in parts(session) if part.volume and part.volume not in snapshot.volumes]
    if lacking:
        raise RefitError(
            f"The snapshot {snapshot.name!r} doesn't hold the volume {some(lacking)}.",
            why=f"{session.name} got it later, and home and volumes go back together.",
            hint=f"bring single files back: `refit session rollback {session.name} {snapshot.name} --only PATH`.",
        )


def diff(sessions: Sessions, name: str, snapshot: str, *, contents: bool = False) -> tuple[str, ...]:
    """The differences of home and volumes from a snapshot, each in words.

    Args:
        sessions: those of this machine.
        name: the session.
        snapshot: its name.
        contents: whether files of the same size and time are read, too.

    Raises:
        UnknownName: there is no such session, or no such snapshot of it.
        RefitError: it doesn't hold all, somebody acts on the session, or it takes too long.
    """
    with _at_rest(sessions, name) as session:
        chosen = find(sessions, name, snapshot)
        require_whole(session, chosen)
        return sessions.homes.differences(session, chosen.id, at_a_glance=not contents)


def bring_back(sessions: Sessions, name: str, snapshot: str, paths: Sequence[str], by: str, *, to: str = "") -> str:
    """Let single files and folders of a session be what they are in a snapshot; it may run, and nothing is stopped.

    Args:
        sessions: those of this machine.
        name: the session.
        snapshot: its name.
        paths: as the session sees them, or from the top of its home.
        by: the person who wants it.
        to: a new folder in the home for them; empty: into place.

    Returns:
        where what was overwritten is now, in words; empty: nothing was.

    Raises:
        UnknownName: there is no such session, or no such snapshot of it.
        RefitError: a path isn't in it, `to` is there already, or somebody acts on the session.
    """
    with _at_rest(sessions, name) as session:
        chosen = find(sessions, name, snapshot)
        suffix = told = ""
        if not to and sessions.homes.snapshot_cost(session):
            suffix = f".before-{now():%Y%m%d-%H%M%S}"
            told = f"files that were overwritten are beside it, as *{suffix}"
        elif not to:
            safety = taking.take(sessions, session, Kind.safety, by)
            told = f"the home as it was until now is the snapshot {safety.name}"
        sessions.homes.bring_files(session, chosen.id, paths, to=to, suffix=suffix)
        data = {"id": chosen.id, "name": chosen.name, "paths": list(paths), "to": to}
        History(sessions.store.database).add(Event.files_restored, session=name, by=by, what=some(paths), data=data)
        return told


def remove(sessions: Sessions, name: str, snapshot: str, by: str) -> Snapshot:
    """Remove a snapshot for good; returns which it was.

    Raises:
        UnknownName: there is no such session, or no such snapshot of it.
        RefitError: a move of the session is not finished.
    """
    with _at_rest(sessions, name):
        chosen = find(sessions, name, snapshot)
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
