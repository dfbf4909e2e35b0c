"""Refit's record of shares: who gave them, until when, and who has come in by them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Engine, Select, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write_rows
from flows.sessions import events
from flows.sessions.history import append
from flows.sessions.people.entitlements import Access, Grant, Kind, Share

# Somebody who was away for longer comes anew.
_VISIT = timedelta(minutes=30)


class GrantRow(Table):
    """A share that holds or held; never removed."""

    __tablename__ = "grants"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    session: Mapped[str] = mapped_column(index=True)
    owner: Mapped[str]
    server: Mapped[str]
    kind: Mapped[str]
    subject: Mapped[str]
    by: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)
    until: Mapped[datetime | None] = mapped_column(Instant)
    ended: Mapped[datetime | None] = mapped_column(Instant, index=True)


class VisitRow(Table):
    """When somebody who isn't its owner was seen in a session last, and whether they were told whose it is."""

    __tablename__ = "visits"

    session: Mapped[str] = mapped_column(primary_key=True)
    person: Mapped[str] = mapped_column(primary_key=True)
    seen: Mapped[datetime | None] = mapped_column(Instant)
    told: Mapped[datetime | None] = mapped_column(Instant)


class Grants:
    """The records in Refit's database."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def open(self) -> tuple[Grant, ...]:
        """All that have not ended, whether their time is over or not."""
        return self._read(GrantRow.ended.is_(None))

    def of(self, session: str) -> tuple[Grant, ...]:
        """All of a session, the oldest first; those that have ended, too."""
        return self._read(GrantRow.session == session)

    def record(self, share: Share, server: str, by: str, until: datetime | None) -> Grant:
        """Write down a share, before the Hub makes it; one that holds gets another end.

        Args:
            share: the session that is shared, and with whom.
            server: name of the owner's server in the Hub.
            by: the person who shares it.
            until: when it ends by itself; none: it doesn't.
        """

        def work(rows: Transaction) -> Grant:
            row = rows.scalars(_row_of(share)).first()
            if row is None:
                row = GrantRow(session=share.session, owner=share.owner, server=server, kind=share.kind, at=now())
                row.subject, row.by = share.subject, by
                rows.add(row)
            row.until = until
            rows.flush()
            _tell(rows.connection(), events.Kind.shared, row, by)
            return _grant(row)

        return write_rows(self._database, work)

    def redeem(self, code: Share, person: str) -> bool:
        """A code becomes a share with this person, which ends when the code's would have; the code has ended.

        Returns whether the code held: it is redeemed once.
        """

        def work(rows: Transaction) -> bool:
            row = rows.scalars(_row_of(code)).first()
            if row is None or (row.until is not None and row.until <= now()):
                return False
            # Another process may redeem it at the same moment: the database says which of them did.
            held = update(GrantRow).where(GrantRow.number == row.number, GrantRow.ended.is_(None))
            if not rows.connection().execute(held.values(ended=now())).rowcount:
                return False
            share = Share(code.session, code.owner, Kind.person, person)
            if (grant := rows.scalars(_row_of(share)).first()) is None:
                same = {"session": row.session, "owner": row.owner, "server": row.server, "by": row.by}
                grant = GrantRow(**same, at=now(), kind=Kind.person, subject=person, until=row.until)
                rows.add(grant)
            # Somebody who has a share that lasts longer keeps it.
            grant.until = max(grant.until, row.until) if grant.until and row.until else None
            rows.flush()
            _tell(rows.connection(), events.Kind.shared, grant, person)
            return True

        return write_rows(self._database, work)

    def seen(self, session: str) -> dict[str, datetime]:
        """Person → when they were in a session that isn't theirs last."""
        with Transaction(self._database) as rows:
            visits = rows.scalars(select(VisitRow).where(VisitRow.session == session, VisitRow.seen.is_not(None)))
            return {visit.person: visit.seen for visit in visits if visit.seen}

    def end(self, share: Share, by: str) -> bool:
        """A share holds no more; whether it was on record."""

        def work(rows: Transaction) -> bool:
            row = rows.scalars(_row_of(share)).first()
            if row is None:
                return False
            row.ended = now()
            _tell(rows.connection(), events.Kind.unshared, row, by)
            return True

        return write_rows(self._database, work)

    def visited(self, session: str, person: str, access: Access) -> None:
        """Somebody who isn't the owner uses a session; the history gets a line each time that they come anew."""

        def work(rows: Transaction) -> None:
            row = rows.get(VisitRow, (session, person)) or VisitRow(session=session, person=person)
            anew = row.seen is None or row.seen < now() - _VISIT
            row.seen = now()
            rows.add(row)
            if anew:
                data = {"role": access.role.value, "via": access.via}
                append(rows.connection(), events.Kind.visited, session=session, by=person, data=data)

        write_rows(self._database, work)

    def told(self, session: str, person: str) -> None:
        """Somebody was told that they act as the user of a session that isn't theirs."""

        def work(rows: Transaction) -> None:
            row = rows.get(VisitRow, (session, person)) or VisitRow(session=session, person=person)
            row.told = now()
            rows.add(row)

        write_rows(self._database, work)

    def was_told(self, session: str, person: str) -> bool:
        """Whether that was so since the session was shared with them last; a later share is told of anew."""
        with Transaction(self._database) as rows:
            row = rows.get(VisitRow, (session, person))
            return bool(row and row.told)

    def forget_told(self, session: str, person: str) -> None:
        """Somebody has lost a session: they are told anew when they get it again."""

        def work(rows: Transaction) -> None:
            if row := rows.get(VisitRow, (session, person)):
                row.told = row.seen = None

        write_rows(self._database, work)

    def _read(self, chosen: ColumnElement[bool]) -> tuple[Grant, ...]:
        with Transaction(self._database) as rows:
            grants = rows.scalars(select(GrantRow).where(chosen).order_by(GrantRow.number))
            return tuple(map(_grant, grants))


def _row_of(share: Share) -> Select[tuple[GrantRow]]:
    same = (GrantRow.session == share.session, GrantRow.owner == share.owner, GrantRow.kind == share.kind.value)
    return select(GrantRow).where(*same, GrantRow.subject == share.subject, GrantRow.ended.is_(None))


def _tell(connection: Connection, kind: events.Kind, row: GrantRow, by: str) -> None:
    data: Mapping[str, str] = {
        "with": str(row.kind),
        "subject": row.subject if row.kind != Kind.code else "",
        "until": row.until.isoformat() if row.until else "",
    }
    append(connection, kind, session=row.session, by=by, what=_in_words(row), data=data)


def _in_words(row: GrantRow) -> str:
    """With whom, and until when, as the owner reads it in the history."""
    subject = {Kind.person: f"with {row.subject}", Kind.group: f"with the group {row.subject}"}
    until = f", until {row.until.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if row.until else ""
    return f"{subject.get(Kind(row.kind), 'by a link')}{until}"


def _grant(row: GrantRow) -> Grant:
    subject = (row.session, row.owner, row.server, Kind(row.kind), row.subject)
    return Grant(row.number, *subject, row.by, row.at, row.until, row.ended)
