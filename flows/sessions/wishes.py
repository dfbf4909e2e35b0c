"""What the owners of sessions want of migrations: when, and when not; and who said so."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import date, datetime, timedelta
from typing import Any, cast

import sqlalchemy
from sqlalchemy import Engine, ForeignKey, Row, bindparam, func, select
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.database import Instant, Table, now
from flows.errors import RefitError, UnknownName
from flows.history import Kind, append
from flows.hours import Hours, read_hours, zone
from flows.policy import Mode
from flows.sessions.store import SessionRow

_DURATION = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?", re.ASCII)


class WishRow(Table):
    """What the owner of a session wants; gone with the session."""

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
    """Who changed a wish; stays when the session is gone."""

    __tablename__ = "wish_changes"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    session: Mapped[str] = mapped_column(index=True)
    at: Mapped[datetime] = mapped_column(Instant)
    by: Mapped[str]
    what: Mapped[str]


@dataclass(frozen=True)
class Wish:
    """What the owner of a session wants.

    Attributes:
        mode: when it moves; none: as the policy says.
        until: a pin's end (the first day on which it may move), or the last day before it is forced; on the owner's
            calendar.
        snoozed_until: not before.
        time_zone: whose clock hours and days are read on; empty: the policy's.
        quiet: hours in which it is left alone, besides those of the policy.
        volunteer: it is among the first.
        agreed: digest of the image that the owner has agreed to move to now, busy or not; empty: none.
        replay: system packages that were installed by hand are installed in its new image, too.
        owner: whose it is, if that is known: who has several wants to lose one at a time.
    """

    mode: Mode | None = None
    until: date | None = None
    snoozed_until: datetime | None = None
    time_zone: str = ""
    quiet: tuple[Hours, ...] = ()
    volunteer: bool = False
    agreed: str = ""
    replay: bool = False
    owner: str = ""


@dataclass(frozen=True)
class WishChange:
    """One change of a wish: when, by whom, and what became of it, in words."""

    session: str
    at: datetime
    by: str
    what: str


class Wishes:
    """The wishes in Refit's database."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def all(self) -> dict[str, Wish]:
        """Session → what its owner wants; those who have said nothing are missing."""
        with Transaction(self._database) as transaction:
            return {row.session: _wish(row) for row in transaction.scalars(select(WishRow))}

    def of(self, session: str) -> Wish:
        """What the owner of one session wants."""
        with self._database.connect() as connection:
            row = connection.execute(_OF, {"of": session}).first()
            return _wish(row) if row else Wish()

    def change(self, session: str, by: str, **changes: Any) -> Wish:
        """Change fields of a wish, and write down who did, in the history as well.

        Raises:
            UnknownName: there is no such session.
        """
        with Transaction(self._database) as transaction, transaction.begin():
            if transaction.get(SessionRow, session) is None:
                raise UnknownName("session", session, transaction.scalars(select(SessionRow.name)))
            row = transaction.get(WishRow, session)
            wish = replace(_wish(row) if row else Wish(), **changes)
            transaction.merge(_row(session, wish))
            what = ", ".join(f"{name}: {_text(value)}" for name, value in changes.items())
            transaction.add(WishChangeRow(session=session, at=now(), by=by, what=what))
            transaction.flush()
            append(transaction.connection(), Kind.wished, session=session, by=by, what=what)
        return wish

    def length(self) -> int:
        """How many changes there were: another number means that somebody has said something."""
        with Transaction(self._database) as transaction:
            return transaction.scalar(select(func.max(WishChangeRow.number))) or 0

    def changes(self, session: str) -> tuple[WishChange, ...]:
        """Who changed the wish of a session, and when, oldest first."""
        chosen = select(WishChangeRow).where(WishChangeRow.session == session).order_by(WishChangeRow.number)
        with Transaction(self._database) as transaction:
            return tuple(WishChange(row.session, row.at, row.by, row.what) for row in transaction.scalars(chosen))


def chosen_mode(mode: str, day: str) -> dict[str, Any]:
    """The fields of a wish that a mode sets; an agreement to move at once ends with it.

    Args:
        mode: `when-idle`, `ask`, `next-start`, `pin` or `forced-by`.
        day: for `pin` and `forced-by`, a date; else empty.

    Raises:
        RefitError: there is no such mode, or the date is missing, one too many, or none.
    """
    if mode not in set(Mode):
        raise UnknownName("mode", mode, [str(known) for known in Mode])
    chosen = Mode(mode)
    dated = chosen in (Mode.pin, Mode.forced_by)
    if dated != bool(day):
        what = f"{mode!r} needs a date." if dated else f"{mode!r} has no date."
        raise RefitError(what, fix=f"`refit session mode NAME {mode}{' 2026-12-31' if dated else ''}`, for instance.")
    return {"mode": chosen, "until": _read_date(day) if day else None, "agreed": ""}


def _read_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise RefitError(f"{text!r} is no date.", fix="write it as 2026-12-31.") from None


def chosen_hours(quiet: tuple[str, ...] | None, time_zone: str | None) -> dict[str, Any]:
    """The fields of a wish that quiet hours and a time zone set; none: as they are.

    Raises:
        RefitError: there are no such hours, or no such zone.
    """
    try:
        if time_zone:
            zone(time_zone)
        found = {} if quiet is None else {"quiet": tuple(read_hours(text) for text in quiet if text)}
    except ValueError as error:
        raise RefitError(f"{str(error)[0].upper()}{str(error)[1:]}.") from None
    return found if time_zone is None else {**found, "time_zone": time_zone}


def read_duration(text: str) -> timedelta:
    """How long that is: `30m`, `2h`, `1d12h`.

    Raises:
        RefitError: nobody can tell.
    """
    match = _DURATION.fullmatch(text.strip())
    days, hours, minutes = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    if not (length := timedelta(days=days, hours=hours, minutes=minutes)):
        raise RefitError(f"{text!r} is no length of time.", fix="write 30m, 2h or 1d12h, for instance.")
    return length


def caller() -> str:
    """Who has typed this command."""
    return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name


def _wish(row: WishRow | Row[Any]) -> Wish:
    values: Mapping[str, Any] = {field.name: getattr(row, field.name) for field in fields(Wish)}
    quiet = tuple(map(read_hours, filter(None, row.quiet.split(";"))))
    return Wish(**{**values, "mode": Mode(row.mode) if row.mode else None, "quiet": quiet})


def _row(session: str, wish: Wish) -> WishRow:
    values = {**asdict(wish), "mode": wish.mode or "", "quiet": ";".join(map(str, wish.quiet))}
    return WishRow(session=session, **values)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "none"
    return str(value) if value not in (None, "") else "none"
