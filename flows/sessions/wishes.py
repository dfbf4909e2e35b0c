"""The wishes of sessions' owners about migrations: when, and when not; and who said so."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, fields, replace
from datetime import date, datetime
from typing import Any, cast

import sqlalchemy
from sqlalchemy import Engine, ForeignKey, Row, bindparam, func, select
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write_rows
from flows.core.errors import UnknownName
from flows.core.hours import read_hours
from flows.core.settings.policy import Mode
from flows.sessions.events import Kind
from flows.sessions.history import append
from flows.sessions.preferences import PreferenceChange, UpdatePreferences
from flows.sessions.store import HomeRow, SessionRow


class WishRow(Table):
    """A wish of a session's owner; gone with the session."""

    __tablename__ = "wishes"

    session: Mapped[str] = mapped_column(ForeignKey("sessions.name", ondelete="CASCADE"), primary_key=True)
    mode: Mapped[str]
    until: Mapped[date | None]
    snoozed_until: Mapped[datetime | None] = mapped_column(Instant)
    time_zone: Mapped[str]
    quiet: Mapped[str]
    volunteer: Mapped[bool]
    agreed: Mapped[str]
    replay: Mapped[bool] = mapped_column(default=False)
    owner: Mapped[str] = mapped_column(default="")


_OF = select(cast(sqlalchemy.Table, WishRow.__table__)).where(WishRow.session == bindparam("of"))


class WishChangeRow(Table):
    """A change of a wish; stays when the session is gone."""

    __tablename__ = "wish_changes"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    session: Mapped[str] = mapped_column(index=True)
    at: Mapped[datetime] = mapped_column(Instant)
    by: Mapped[str]
    what: Mapped[str]


class PreferenceStore:
    """The wishes in Refit's database."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def all(self) -> dict[str, UpdatePreferences]:
        """Session → what its owner wants; those who have said nothing are missing."""
        with Transaction(self._database) as transaction:
            return {row.session: _wish(row) for row in transaction.scalars(select(WishRow))}

    def of(self, session: str) -> UpdatePreferences:
        """The wishes of one session's owner."""
        with self._database.connect() as connection:
            row = connection.execute(_OF, {"of": session}).first()
            return _wish(row) if row else UpdatePreferences()

    def change(self, session: str, by: str, **changes: Any) -> UpdatePreferences:
        """Change fields of a wish, and write down who did, in the history as well; the home gets the same owner.

        Raises:
            UnknownName: there is no such session.
        """

        def work(transaction: Transaction) -> UpdatePreferences:
            if transaction.get(SessionRow, session) is None:
                raise UnknownName("session", session, transaction.scalars(select(SessionRow.name)))
            row = transaction.get(WishRow, session)
            wish = replace(_wish(row) if row else UpdatePreferences(), **changes)
            transaction.merge(_row(session, wish))
            if "owner" in changes:
                transaction.get_one(HomeRow, session).owner = wish.owner
            what = ", ".join(f"{name}: {_text(value)}" for name, value in changes.items())
            transaction.add(WishChangeRow(session=session, at=now(), by=by, what=what))
            transaction.flush()
            append(transaction.connection(), Kind.wished, session=session, by=by, what=what)
            return wish

        return write_rows(self._database, work)

    def length(self) -> int:
        """How many changes there were: another number means that somebody has said something."""
        with Transaction(self._database) as transaction:
            return transaction.scalar(select(func.max(WishChangeRow.number))) or 0

    def changes(self, session: str) -> tuple[PreferenceChange, ...]:
        """The changes of a session's wishes: by whom and when, oldest first."""
        chosen = select(WishChangeRow).where(WishChangeRow.session == session).order_by(WishChangeRow.number)
        with Transaction(self._database) as transaction:
            return tuple(PreferenceChange(row.session, row.at, row.by, row.what) for row in transaction.scalars(chosen))


_acting: ContextVar[str] = ContextVar("acting", default="")


@contextmanager
def acting_as(person: str) -> Iterator[None]:
    """Inside the `with` block, what this thread does is done for a person who is logged in elsewhere."""
    token = _acting.set(person)
    try:
        yield
    finally:
        _acting.reset(token)


def caller() -> str:
    """The person for whom this thread acts, or who has typed this command."""
    return _acting.get() or os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name


def _wish(row: WishRow | Row[Any]) -> UpdatePreferences:
    values: Mapping[str, Any] = {field.name: getattr(row, field.name) for field in fields(UpdatePreferences)}
    quiet = tuple(map(read_hours, filter(None, row.quiet.split(";"))))
    return UpdatePreferences(**{**values, "mode": Mode(row.mode) if row.mode else None, "quiet": quiet})


def _row(session: str, wish: UpdatePreferences) -> WishRow:
    values = {**asdict(wish), "mode": wish.mode or "", "quiet": ";".join(map(str, wish.quiet))}
    return WishRow(session=session, **values)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "none"
    return str(value) if value not in (None, "") else "none"
