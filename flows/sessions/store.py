"""Refit's records of sessions: the parts of each, the uids of people, and which sessions ought to run.

Which do run is not here: the engine knows.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import cast

import sqlalchemy
from sqlalchemy import Connection, Engine, ForeignKey, bindparam, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write, write_rows
from flows.core.errors import RefitError, UnknownName
from flows.core.leases import LEASE_SECONDS, Lease, lease, still_ours
from flows.core.settings.spans import Span
from flows.sessions.model import Session

_ATTEMPTS = 100


class HomeRow(Table):
    """A home, the uid of its files, and the person who owns it (empty: nobody known); outlives the session."""

    __tablename__ = "homes"

    name: Mapped[str] = mapped_column(primary_key=True)
    uid: Mapped[int] = mapped_column(unique=True)
    created: Mapped[datetime] = mapped_column(Instant)
    owner: Mapped[str] = mapped_column(default="", server_default="")


class SessionRow(Table):
    """A session; its home bears the same name. `should_run`: whether it ought to run, and `asked` since when."""

    __tablename__ = "sessions"

    name: Mapped[str] = mapped_column(ForeignKey("homes.name"), primary_key=True)
    spec: Mapped[str]
    should_run: Mapped[bool] = mapped_column("wanted")
    asked: Mapped[datetime | None] = mapped_column(Instant)
    created: Mapped[datetime] = mapped_column(Instant)


_SESSIONS = cast(sqlalchemy.Table, SessionRow.__table__)
_RECORD = update(_SESSIONS).where(_SESSIONS.c.name == bindparam("of")).values(spec=bindparam("made"))
_HOME = select(HomeRow.name).where(HomeRow.name == bindparam("of"))
_FIND = select(SessionRow.spec, SessionRow.should_run.label("should_run")).where(SessionRow.name == bindparam("of"))


class NameTaken(RefitError):
    """There is a session of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is a session {name!r} already.",
            hint=f"choose another name, or remove it: `refit session rm {name}` keeps its home.",
        )


class HomeTaken(RefitError):
    """A home of that name was kept, and it isn't this person's."""

    def __init__(self, name: str, person: str) -> None:
        super().__init__(
            f"The home {name!r} isn't {person}'s.",
            why="It was kept when its session was removed.",
            hint=f"choose another name; an operator hands it over: `refit home owner {name} {person}`.",
        )


class Exhausted(RefitError):
    """Nothing is left of a range in the settings."""

    def __init__(self, what: str, span: Span, setting: str) -> None:
        super().__init__(
            f"Every {what} from {span.first} to {span.last} is in use.",
            hint=f"remove a session that nobody needs, or widen `{setting}` in settings.yaml.",
        )


class Store:
    """The records of homes and sessions in Refit's database."""

    def __init__(self, database: Engine, lease_seconds: float = LEASE_SECONDS) -> None:
        self._database, self._lease_seconds = database, lease_seconds

    @property
    def database(self) -> Engine:
        """The database in which the records are."""
        return self._database

    def hold(self, name: str, wait: float = 10.0) -> AbstractContextManager[Lease]:
        """Be the only one who changes this session inside the `with` block; waits up to `wait` seconds for another."""
        return lease(self._database, f"session {name}", seconds=self._lease_seconds, wait=wait, alone=True)

    def add(
        self,
        name: str,
        make: Callable[[int], Session],
        *,
        uids: Span,
        avoid: Collection[int] = (),
        owner: str = "",
    ) -> Session:
        """Record a new session with a uid of its own, that nobody else on this host has.

        Args:
            name: name of the session and of its home; a home that was kept keeps its uid.
            make: makes the session of its uid.
            uids: the range of host uids.
            avoid: uids that are in use though nobody recorded it.
            owner: the person whose it is; empty: as the home says that was kept.

        Raises:
            NameTaken: there is a session of that name.
            HomeTaken: the home that was kept is not this owner's.
            Exhausted: no uid is left.
        """
        for _ in range(_ATTEMPTS):
            # Uniqueness is the database's to guard: a run whose number another run took meanwhile looks again.
            with suppress(IntegrityError):
                return write_rows(self._database, lambda rows: _add(rows, name, make, uids, avoid, owner))
        raise RefitError(f"Other runs kept taking the uids for {name!r}.", hint="try again.")

    def bring_back(self, session: Session, *, should_run: bool) -> None:
        """Record a session again whose record was lost, as it is.

        Raises:
            NameTaken: there is one of that name.
            RefitError: its home or its uid belongs to another.
        """

        def work(transaction: Transaction) -> None:
            still_ours(transaction.connection())
            if transaction.get(SessionRow, session.name):
                raise NameTaken(session.name)
            if (kept := transaction.get(HomeRow, session.name)) is None:
                transaction.add(HomeRow(name=session.name, uid=session.uid, created=now()))
                transaction.flush()
            elif kept.uid != session.uid:
                raise _belongs_elsewhere(session)
            row = {"spec": session.to_json(), "should_run": should_run}
            transaction.add(SessionRow(name=session.name, **row, asked=now(), created=now()))

        try:
            write_rows(self._database, work)
        except IntegrityError:
            raise _belongs_elsewhere(session) from None

    def bring_home_back(self, name: str, uid: int) -> None:
        """Record a home again whose record was lost, for the next session of its name.

        Raises:
            RefitError: its uid belongs to another.
        """
        try:
            write_rows(self._database, lambda rows: rows.add(HomeRow(name=name, uid=uid, created=now())))
        except IntegrityError:
            raise RefitError(
                f"The uid of the home {name!r} belongs to another: {uid}.",
                why="That one was made after the record of this one was lost.",
                hint="remove the other one, or move this home elsewhere.",
            ) from None

    def session(self, name: str) -> Session:
        """The session of that name.

        Raises:
            UnknownName: there is none.
        """
        if (record := self.find(name)) is None:
            raise UnknownName("session", name, [session.name for session in self.sessions()])
        return record[0]

    def find(self, name: str) -> tuple[Session, bool] | None:
        """The session of that name, and whether it ought to run; none: there is none."""
        with self._database.connect() as connection:
            row = connection.execute(_FIND, {"of": name}).first()
            return (Session.from_json(row.spec), row.should_run) if row else None

    def sessions(self) -> tuple[Session, ...]:
        """All sessions, by name."""
        with Transaction(self._database) as transaction:
            specs = transaction.scalars(select(SessionRow.spec).order_by(SessionRow.name))
            return tuple(map(Session.from_json, specs))

    def homes(self) -> dict[str, int]:
        """All homes, with a session or without: name → uid."""
        with Transaction(self._database) as transaction:
            return {row.name: row.uid for row in transaction.scalars(select(HomeRow).order_by(HomeRow.name))}

    def owners(self) -> dict[str, str]:
        """The homes, with a session or without, of which it is known whose they are: name → person."""
        with Transaction(self._database) as transaction:
            rows = transaction.execute(select(HomeRow.name, HomeRow.owner).where(HomeRow.owner != ""))
            return {row.name: row.owner for row in rows}

    def give_home(self, name: str, owner: str) -> None:
        """From now on a home is this person's; empty: nobody's in particular.

        Raises:
            UnknownName: there is no such home.
        """

        def give(rows: Transaction) -> None:
            if (home := rows.get(HomeRow, name)) is None:
                raise UnknownName("home", name, rows.scalars(select(HomeRow.name)))
            home.owner = owner

        write_rows(self._database, give)

    def has_home(self, name: str) -> bool:
        """Whether there is a home of that name, with a session or without."""
        with self._database.connect() as connection:
            return connection.execute(_HOME, {"of": name}).first() is not None

    def intents(self) -> frozenset[str]:
        """The names of the sessions that ought to run."""
        with Transaction(self._database) as transaction:
            return frozenset(transaction.scalars(select(SessionRow.name).where(SessionRow.should_run)))

    def want(self, name: str, running: bool) -> None:
        """Remember whether a session ought to run, and since when."""

        def work(transaction: Transaction) -> None:
            still_ours(transaction.connection())
            row = transaction.get_one(SessionRow, name)
            row.should_run, row.asked = running, row.asked if row.asked and row.should_run == running else now()

        write_rows(self._database, work)

    def intent(self, name: str) -> tuple[bool, datetime | None] | None:
        """Whether a session ought to run, and since when, if that is known; none: there is no such session."""
        with Transaction(self._database) as transaction:
            row = transaction.get(SessionRow, name)
            return (row.should_run, row.asked) if row else None

    def update(self, session: Session) -> None:
        """From now on the session is this one: another image, another generation, other volumes."""

        def work(connection: Connection) -> None:
            still_ours(connection)
            record(connection, session)

        write(self._database, work)

    def forget(self, name: str) -> None:
        """Forget a session; its home keeps its uid."""
        _forget(self._database, SessionRow, name)

    def forget_home(self, name: str) -> None:
        """Forget a home that is gone; its uid may be given to another."""
        _forget(self._database, HomeRow, name)


def _belongs_elsewhere(session: Session) -> RefitError:
    return RefitError(
        f"The uid of the session {session.name!r} belongs to another: {session.uid}.",
        why="That one was made after the record of this one was lost.",
        hint="remove the other one, or this one's container, whose home stays.",
    )


def record(connection: Connection, session: Session) -> None:
    """Within a transaction of the caller: from now on the session is this one."""
    written = connection.execute(_RECORD, {"of": session.name, "made": session.to_json()})
    if written.rowcount != 1:
        raise UnknownName("session", session.name, ())


def _add(
    transaction: Transaction,
    name: str,
    make: Callable[[int], Session],
    uids: Span,
    avoid: Collection[int],
    owner: str,
) -> Session:
    still_ours(transaction.connection())
    if transaction.get(SessionRow, name):
        raise NameTaken(name)
    kept = transaction.get(HomeRow, name)
    if kept and owner and kept.owner != owner:
        raise HomeTaken(name, owner)
    uid = kept.uid if kept else _free_uid(transaction, uids, avoid)
    session = make(uid)
    if not kept:
        transaction.add(HomeRow(name=name, uid=uid, created=now(), owner=owner))
        transaction.flush()
    transaction.add(SessionRow(name=name, spec=session.to_json(), should_run=False, created=now()))
    return session


def _free_uid(transaction: Transaction, uids: Span, avoid: Collection[int]) -> int:
    taken = {*transaction.scalars(select(HomeRow.uid)), *avoid}
    for uid in range(uids.first, uids.last + 1):
        if uid not in taken and not _is_somebody(uid):
            return uid
    raise Exhausted("uid", uids, "session_uids")


def _is_somebody(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _forget(database: Engine, table: type[HomeRow] | type[SessionRow], name: str) -> None:
    def work(connection: Connection) -> None:
        still_ours(connection)
        connection.execute(delete(table).where(table.name == name))

    write(database, work)
