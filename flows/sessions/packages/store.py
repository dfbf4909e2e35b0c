"""The record of system packages that sessions are to have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import Engine, ForeignKey, delete, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write_rows
from flows.core.errors import UnknownName
from flows.sessions.events import Kind
from flows.sessions.history import append
from flows.sessions.packages.model import Package, check_names
from flows.sessions.store import SessionRow


class PackageRow(Table):
    """A system package of a session; gone with the session."""

    __tablename__ = "session_packages"

    session: Mapped[str] = mapped_column(ForeignKey("sessions.name", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    by: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)
    finished: Mapped[bool]


class PackageStore:
    """The system packages of sessions in Refit's database."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def of(self, session: str) -> tuple[Package, ...]:
        """The packages of a session, by name."""
        chosen = select(PackageRow).where(PackageRow.session == session).order_by(PackageRow.name)
        with Transaction(self._database) as rows:
            return tuple(Package(row.name, row.by, row.at, row.finished) for row in rows.scalars(chosen))

    def names(self, session: str) -> tuple[str, ...]:
        """The names of those that each container of a session is to have."""
        return tuple(package.name for package in self.of(session) if package.finished)

    def begin(self, session: str, names: Sequence[str], by: str) -> None:
        """Write down that packages are about to be installed; those that are finished stay as they are.

        Raises:
            UnknownName: there is no such session.
            RefitError: there would be more than `MOST`.
        """

        def work(rows: Transaction) -> None:
            if rows.get(SessionRow, session) is None:
                raise UnknownName("session", session, rows.scalars(select(SessionRow.name)))
            recorded = set(rows.scalars(select(PackageRow.name).where(PackageRow.session == session)))
            check_names([*recorded, *names])
            at = now()
            rows.add_all(PackageRow(session=session, name=n, by=by, at=at, finished=False) for n in {*names} - recorded)

        write_rows(self._database, work)

    def finish(self, session: str, names: Iterable[str], by: str) -> None:
        """Write down that packages were installed, in the history as well: moves install them again from now on."""
        chosen = sorted(names)

        def work(rows: Transaction) -> None:
            mine = PackageRow.session == session, PackageRow.name.in_(chosen)
            rows.execute(update(PackageRow).where(*mine).values(finished=True))
            _tell(rows, Kind.packages_installed, session, chosen, by)

        if chosen:
            write_rows(self._database, work)

    def forget(self, session: str, names: Iterable[str], by: str) -> tuple[str, ...]:
        """Take packages off the record; returns those that moves would have installed."""
        chosen = sorted(names)

        def work(rows: Transaction) -> tuple[str, ...]:
            mine = PackageRow.session == session, PackageRow.name.in_(chosen)
            finished = select(PackageRow.name).where(*mine, PackageRow.finished).order_by(PackageRow.name)
            gone = tuple(rows.scalars(finished))
            rows.execute(delete(PackageRow).where(*mine))
            if gone:
                _tell(rows, Kind.packages_forgotten, session, gone, by)
            return gone

        return write_rows(self._database, work)

    def copy(self, session: str, other: str) -> None:
        """Let another session have the same packages, as the clone of one has."""
        finished = [package for package in self.of(session) if package.finished]

        def work(rows: Transaction) -> None:
            for package in finished:
                rows.merge(PackageRow(session=other, name=package.name, by=package.by, at=package.at, finished=True))

        write_rows(self._database, work)


def _tell(rows: Transaction, kind: Kind, session: str, names: Sequence[str], by: str) -> None:
    data = {"packages": [*names]}
    append(rows.connection(), kind, session=session, by=by, what=", ".join(names), data=data)
