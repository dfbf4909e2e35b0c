"""The history of sessions and rollouts, in a chain: each event's digest covers the one before it.

Events are only ever added, in the transaction of what they tell. A person who changes or removes one breaks the chain,
and `broken` says where.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import sqlalchemy
from sqlalchemy import Connection, Engine, bindparam, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write
from flows.sessions.events import Event, Kind


class EventRow(Table):
    """One event; never changed."""

    __tablename__ = "events"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(Instant)
    kind: Mapped[str]
    session: Mapped[str] = mapped_column(index=True)
    image: Mapped[str] = mapped_column(index=True)
    by: Mapped[str]
    what: Mapped[str]
    data: Mapped[str]
    digest: Mapped[str]


class ChainRow(Table):
    """The end of the chain: one row, which whoever adds an event locks."""

    __tablename__ = "chain"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int]
    digest: Mapped[str]


# Made once: to make a statement takes longer than to execute it.
_EVENTS, _CHAIN = (cast(sqlalchemy.Table, row.__table__) for row in (EventRow, ChainRow))
_ADD = insert(_EVENTS)
_NEXT = update(_CHAIN).values(number=_CHAIN.c.number + 1).returning(_CHAIN.c.number, _CHAIN.c.digest)
_CHAIN_TO = update(_CHAIN).values(digest=bindparam("latest"))


def append(
    connection: Connection,
    kind: Kind,
    *,
    session: str = "",
    image: str = "",
    by: str = "",
    what: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Add an event within a transaction of the caller, who holds the lease of the session that it is about, if any."""
    # The update comes first: it lets one writer at a time through, on SQLite as on PostgreSQL.
    number, before = connection.execute(_NEXT).one()
    event = Event(number, now(), kind, session, image, by, what, "", data or {})
    digest = _digest(event, before)
    connection.execute(_ADD, {**vars(event), "data": _as_text(event.data), "digest": digest})
    connection.execute(_CHAIN_TO, {"latest": digest})


class History:
    """All events, past and present."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def add(
        self,
        kind: Kind,
        *,
        session: str = "",
        image: str = "",
        by: str = "",
        what: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an event by itself."""
        write(self._database, lambda c: append(c, kind, session=session, image=image, by=by, what=what, data=data))

    def events(self, session: str = "", image: str = "", kinds: Iterable[Kind] = ()) -> tuple[Event, ...]:
        """The events of a session, of an image, of some kinds, or all; oldest first."""
        chosen = select(EventRow).order_by(EventRow.number)
        chosen = chosen.where(EventRow.session == session) if session else chosen
        chosen = chosen.where(EventRow.image == image) if image else chosen
        kinds_asked = tuple(kinds)
        chosen = chosen.where(EventRow.kind.in_(kinds_asked)) if kinds_asked else chosen
        with Transaction(self._database) as transaction:
            return tuple(map(_event, transaction.scalars(chosen)))

    def length(self) -> int:
        """How many events there are: another number means that something has happened."""
        with Transaction(self._database) as transaction:
            return transaction.get_one(ChainRow, 1).number

    def broken(self) -> str:
        """Where the history isn't as it was written; empty: nowhere."""
        with Transaction(self._database) as transaction:
            end = transaction.get_one(ChainRow, 1)
            events = [_event(row) for row in transaction.scalars(select(EventRow).order_by(EventRow.number))]
            return next(check(events, end.number, end.digest), "")


def check(events: Iterable[Event], number: int, digest: str) -> Iterator[str]:
    """The mistakes in a chain that should end with this number and digest. Pure."""
    last, before = 0, ""
    for event in events:
        if event.number != last + 1:
            yield f"event {last + 1} is missing"
            return
        if event.digest != _digest(event, before):
            yield f"event {event.number} was changed, or one before it"
            return
        last, before = event.number, event.digest
    if (last, before) != (number, digest):
        yield f"{number} events were written, and {last} are there"


def _digest(event: Event, before: str) -> str:
    at = event.at.astimezone(UTC).isoformat()
    words = [event.session, event.image, event.by, event.what, _as_text(event.data)]
    fields = [before, event.number, at, event.kind, *words]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _event(row: EventRow) -> Event:
    data = json.loads(row.data)
    return Event(row.number, row.at, Kind(row.kind), row.session, row.image, row.by, row.what, row.digest, data)


def _as_text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True)
