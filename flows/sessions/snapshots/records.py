"""Refit's record of snapshots: written before anything is copied, and completed once everything is.

A record without its end is that of a process that was killed: the next that acts on the session removes what it left.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, Engine, ForeignKey, delete, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, write
from flows.core.errors import RefitError
from flows.core.leases import still_ours
from flows.sessions import events
from flows.sessions.history import append
from flows.sessions.snapshots.model import Kind, Snapshot


class SnapshotRow(Table):
    """One snapshot; gone with the home. `complete`: everything is in it, and nobody has begun to remove it."""

    __tablename__ = "snapshots"

    id: Mapped[str] = mapped_column(primary_key=True)
    session: Mapped[str] = mapped_column(ForeignKey("homes.name", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    kind: Mapped[str]
    by: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)
    note: Mapped[str]
    image: Mapped[str]
    profile: Mapped[str]
    release: Mapped[str]
    volumes: Mapped[str]
    size: Mapped[int | None]
    complete: Mapped[bool]


class SnapshotTaken(RefitError):
    """There is a snapshot of that name."""

    def __init__(self, session: str, name: str) -> None:
        super().__init__(
            f"There is a snapshot {name!r} of {session} already.",
            hint=f"choose another name, or remove it: `refit session remove-snapshot {session} {name}`.",
        )


class SnapshotRecords:
    """The records in Refit's database. A process that changes those of a session holds its lease."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def all(self, session: str = "") -> tuple[Snapshot, ...]:
        """The snapshots of one session, or of all, oldest first; none of those that are half made or half removed."""
        return tuple(_snapshot(row) for row in self._rows(session) if row.complete)

    def left(self, session: str) -> tuple[str, ...]:
        """The ids of those that somebody was killed over: half made, or half removed."""
        return tuple(row.id for row in self._rows(session) if not row.complete)

    def begin(self, snapshot: Snapshot) -> None:
        """Write down that a snapshot is to be taken.

        Raises:
            SnapshotTaken: there is one of that name.
        """

        def work(connection: Connection) -> None:
            still_ours(connection)
            same = (SnapshotRow.session == snapshot.session, SnapshotRow.name == snapshot.name)
            if connection.execute(select(SnapshotRow.id).where(*same, SnapshotRow.complete)).first():
                raise SnapshotTaken(snapshot.session, snapshot.name)
            connection.execute(insert(SnapshotRow).values(complete=False, **_values(snapshot)))

        write(self._database, work)

    def complete(self, snapshot: Snapshot) -> None:
        """Write down that a snapshot is whole, in the history as well."""

        def work(connection: Connection) -> None:
            still_ours(connection)
            chosen = update(SnapshotRow).where(SnapshotRow.id == snapshot.id)
            connection.execute(chosen.values(complete=True, size=snapshot.size))
            _tell(connection, events.Kind.snapshot_taken, snapshot, snapshot.by)

        write(self._database, work)

    def adopt(self, snapshot: Snapshot) -> None:
        """Write down a snapshot that is there and whole; one that is on record stays as it is."""

        def work(connection: Connection) -> None:
            still_ours(connection)
            if connection.execute(select(SnapshotRow.id).where(SnapshotRow.id == snapshot.id)).first() is None:
                connection.execute(insert(SnapshotRow).values(complete=True, **_values(snapshot)))
                _tell(connection, events.Kind.snapshot_taken, snapshot, snapshot.by)

        write(self._database, work)

    def part_with(self, snapshot: Snapshot, by: str) -> None:
        """Write down that a snapshot is to be removed: from now on nobody goes back to it."""

        def work(connection: Connection) -> None:
            still_ours(connection)
            connection.execute(update(SnapshotRow).where(SnapshotRow.id == snapshot.id).values(complete=False))
            _tell(connection, events.Kind.snapshot_removed, snapshot, by)

        write(self._database, work)

    def forget(self, id: str) -> None:
        """Forget a snapshot of which nothing is left; none of that id is no error."""

        def work(connection: Connection) -> None:
            still_ours(connection)
            connection.execute(delete(SnapshotRow).where(SnapshotRow.id == id))

        write(self._database, work)

    def _rows(self, session: str) -> Sequence[SnapshotRow]:
        chosen = select(SnapshotRow).order_by(SnapshotRow.at, SnapshotRow.id)
        with Transaction(self._database) as transaction:
            return transaction.scalars(chosen.where(SnapshotRow.session == session) if session else chosen).all()


def _tell(connection: Connection, kind: events.Kind, snapshot: Snapshot, by: str) -> None:
    data = {"id": snapshot.id, "name": snapshot.name, "kind": str(snapshot.kind)}
    what = f"{snapshot.name}; {snapshot.kind.text}"
    append(connection, kind, session=snapshot.session, image=snapshot.image, by=by, what=what, data=data)


def _values(snapshot: Snapshot) -> dict[str, object]:
    return {**asdict(snapshot), "kind": str(snapshot.kind), "volumes": json.dumps(snapshot.volumes)}


def _snapshot(row: SnapshotRow) -> Snapshot:
    return Snapshot(
        row.id,
        row.session,
        row.name,
        Kind(row.kind),
        row.by,
        row.at,
        row.note,
        row.image,
        row.profile,
        row.release,
        tuple(json.loads(row.volumes)),
        row.size,
    )
