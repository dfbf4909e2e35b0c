"""Actions of people that take their time, in the database: which go on, and for a while what came of the others.

Each is carried out by one service. One that a service has left behind, as it was killed, is told as interrupted when
that service begins again; the journals of moves and rollbacks see to its session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import Engine, delete, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Instant, Table, now, write_rows
from flows.core.errors import RefitError
from flows.web.people.doing import Doing, hint, words

Result = TypeVar("Result")

KEPT = timedelta(minutes=10)  # How long it is told what came of an action.
LONGEST = 2000  # characters of a text
FAILED = "Refit failed; the operator can find out why in its log."
INTERRUPTED = "Refit was restarted while this went on."
INTERRUPTED_HINT = "look at the session, and ask again if it isn't as you want it."


class Service(StrEnum):
    """The service that carries an action out."""

    page = "page"
    hub = "hub"


class ActionRow(Table):
    """The last action of a session, or of a server of the Hub that has no session yet."""

    __tablename__ = "person_actions"

    person: Mapped[str] = mapped_column(primary_key=True)  # whose server it is; empty: `name` is a session
    name: Mapped[str] = mapped_column(primary_key=True)
    service: Mapped[str]
    verb: Mapped[str]
    by: Mapped[str]
    since: Mapped[datetime] = mapped_column(Instant)
    ended: Mapped[datetime | None] = mapped_column(Instant)
    problem: Mapped[str]
    hint: Mapped[str]
    note: Mapped[str]


class ActionRecords:
    """The records of one service."""

    def __init__(self, database: Engine, service: Service) -> None:
        self._database, self._service = database, service

    def begin(self, name: str, doing: Doing, *, person: str = "") -> None:
        """Note that an action begins, in the place of the one before; records that are old go."""
        given = {"verb": doing.verb, "by": doing.by, "since": doing.since, "problem": "", "hint": "", "note": ""}
        row = ActionRow(person=person, name=name, service=self._service.value, **given)

        def write(rows: Session) -> None:
            rows.execute(delete(ActionRow).where(ActionRow.ended < now() - KEPT))
            rows.merge(row)

        write_rows(self._database, write)

    def end(self, name: str, doing: Doing, *, person: str = "") -> None:
        """Note what came of an action, unless another one has begun since."""
        here = (ActionRow.person == person) & (ActionRow.name == name) & (ActionRow.since == doing.since)
        texts = {"problem": doing.problem[:LONGEST], "hint": doing.hint[:LONGEST], "note": doing.note[:LONGEST]}
        change = update(ActionRow).where(here).values(ended=doing.ended, **texts)
        write_rows(self._database, lambda rows: rows.execute(change))

    def end_interrupted(self) -> None:
        """Note that what an earlier process of this service had begun was interrupted."""
        open_ones = (ActionRow.service == self._service.value) & ActionRow.ended.is_(None)
        values = {"ended": now(), "problem": INTERRUPTED, "hint": INTERRUPTED_HINT}
        write_rows(self._database, lambda rows: rows.execute(update(ActionRow).where(open_ones).values(**values)))

    def of_sessions(self) -> Mapping[str, Doing]:
        """Session → its last action, if that goes on or ended not long ago."""
        return self._of("")

    def creations(self, person: str) -> Mapping[str, Doing]:
        """Server of a person → how its session is or was made, if that goes on or ended not long ago."""
        return self._of(person)

    def follow_creation(self, person: str, server: str, make: Callable[[], Result]) -> Result:
        """Make the session of a server, and keep what came of that.

        Raises:
            RefitError: it isn't made.
        """
        begun = Doing("create", person, now())
        self.begin(server, begun, person=person)
        ended = replace(begun, problem=FAILED)
        try:
            result = make()
            ended = begun
            return result
        except RefitError as error:
            ended = replace(begun, problem=words(error), hint=hint(error))
            raise
        finally:
            self.end(server, replace(ended, ended=now()), person=person)

    def _of(self, person: str) -> Mapping[str, Doing]:
        fresh = ActionRow.ended.is_(None) | (ActionRow.ended >= now() - KEPT)
        with Session(self._database) as rows:
            every = rows.scalars(select(ActionRow).where(ActionRow.person == person, fresh))
            return {row.name: _read(row) for row in every}


def _read(row: ActionRow) -> Doing:
    return Doing(row.verb, row.by, row.since, row.ended, row.problem, row.hint, row.note)
