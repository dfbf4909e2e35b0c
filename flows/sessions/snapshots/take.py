"""Taking and removing snapshots of a session, whether it runs or not: whole, or not there at all."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.formatting import megabytes
from flows.core.progress import State, report, reported
from flows.sessions.homes.volumes import parts
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.snapshots.model import Kind, Snapshot, as_note, check_name, check_note, name_for
from flows.sessions.snapshots.records import SnapshotRecords, SnapshotTaken


def take(sessions: Sessions, session: Session, kind: Kind, by: str, *, name: str = "", note: str = "") -> Snapshot:
    """Take a snapshot of home and own volumes; the caller holds the lease of the session, which may run.

    In the pool it shows one instant. Elsewhere it is a copy that takes its time: a file that changes meanwhile is in it
    as it was before or after.

    Args:
        sessions: those of this machine.
        session: the session with the home and volumes.
        kind: why.
        by: the person who wants it, or what does.
        name: as people shall call it; empty: the moment.
        note: of that person.

    Raises:
        RefitError: the name can't be, or is taken; there is no room; or something can't be copied. Nothing is left.
    """
    records, homes = SnapshotRecords(sessions.store.database), sessions.homes
    tidy(sessions, session.name)
    snapshot = _planned(records, session, kind, by, name, check_note(note))
    homes.check_room(session)
    cost = homes.snapshot_cost(session)
    records.begin(snapshot)
    try:
        with reported(
            session.name, f"taking a snapshot: {megabytes(cost)} are copied" if cost else "taking a snapshot"
        ):
            homes.copy(session, snapshot.id)
            whole = replace(snapshot, size=cost or None)
            homes.note(session.name, snapshot.id, as_note(whole))
            records.complete(whole)
    except BaseException:
        with suppress(RefitError):  # then who acts on it next does
            _drop(sessions, session.name, snapshot.id)
        raise
    return whole


def remove(sessions: Sessions, snapshot: Snapshot, by: str) -> None:
    """Remove a snapshot for good; the caller holds the lease of the session.

    Raises:
        RefitError: it can't be removed as a whole; nobody goes back to it any more, and the rest goes later.
    """
    SnapshotRecords(sessions.store.database).part_with(snapshot, by)
    _drop(sessions, snapshot.session, snapshot.id)


def tidy(sessions: Sessions, session: str) -> None:
    """Remove what killed processes have left half made or half removed; the caller holds the lease of the session."""
    for id in SnapshotRecords(sessions.store.database).left(session):
        report(session, State.running, "removing what is left of a snapshot")
        _drop(sessions, session, id)


def _drop(sessions: Sessions, session: str, id: str) -> None:
    sessions.homes.forget(session, id)
    SnapshotRecords(sessions.store.database).forget(id)


def _planned(records: SnapshotRecords, session: Session, kind: Kind, by: str, name: str, note: str) -> Snapshot:
    at, taken = now(), {each.name for each in records.all(session.name)}
    if name and check_name(name) in taken:
        raise SnapshotTaken(session.name, name)
    return Snapshot(
        new_id(at),
        session.name,
        name or name_for(kind, at, taken),
        kind,
        by,
        at,
        note,
        session.image,
        session.profile,
        session.release,
        tuple(part.volume for part in parts(session) if part.volume),
    )


def new_id(at: datetime) -> str:
    """A name for a folder that no other snapshot has, nor any move: those begin with a letter."""
    return f"{at:%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"
