"""How long the snapshots of single sessions stay, where that is otherwise than the settings say."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine, ForeignKey, select
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Table, write_rows
from flows.core.errors import UnknownName
from flows.core.settings.policy import SnapshotPolicy
from flows.sessions.events import Kind
from flows.sessions.history import append
from flows.sessions.snapshots.retention import Rules
from flows.sessions.store import SessionRow


class SnapshotRulesRow(Table):
    """The rules of one session; gone with it."""

    __tablename__ = "snapshot_rules"

    session: Mapped[str] = mapped_column(ForeignKey("sessions.name", ondelete="CASCADE"), primary_key=True)
    every_hours: Mapped[float | None]
    newest: Mapped[int | None]
    days: Mapped[int | None]


class RulesStore:
    """The rules in Refit's database."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def of(self, session: str) -> Rules:
        """The rules of one session."""
        with Transaction(self._database) as rows:
            row = rows.get(SnapshotRulesRow, session)
            return Rules(row.every_hours, row.newest, row.days) if row else Rules()

    def policies(self, policy: SnapshotPolicy) -> Callable[[str], SnapshotPolicy]:
        """The policy of each session, by its name, where the settings say `policy`."""
        with Transaction(self._database) as rows:
            rules = {
                row.session: Rules(row.every_hours, row.newest, row.days).over(policy)
                for row in rows.scalars(select(SnapshotRulesRow))
            }
        return lambda session: rules.get(session, policy)

    def choose(self, session: str, rules: Rules, by: str) -> None:
        """From now on these are the rules of a session.

        Raises:
            UnknownName: there is no such session.
        """

        def work(rows: Transaction) -> None:
            if rows.get(SessionRow, session) is None:
                raise UnknownName("session", session, ())
            rows.merge(SnapshotRulesRow(session=session, **vars(rules)))
            what = ", ".join(f"{name}: {value}" for name, value in vars(rules).items() if value is not None)
            sentence = f"snapshots: {what or 'as the settings say'}"
            append(rows.connection(), Kind.wished, session=session, by=by, what=sentence, data=vars(rules))

        write_rows(self._database, work)
