"""The journal of moves: every intent is on the disk before its side effect, every outcome before the next intent's.

Only the holder of the session's lease writes, and every line is checked against it: a process that was taken for dead
and wakes up again can't write, and stops before its next side effect.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast
from uuid import uuid4

import sqlalchemy
from sqlalchemy import Connection, Engine, ForeignKey, Row, bindparam, insert, or_, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write
from flows.core.leases import Lease, held_insert, insert_held, still_held
from flows.migrations.move import Consent, Entry, Move, Past, Phase, downtime, leads_to, state
from flows.migrations.move_steps import FINAL, Code, State
from flows.sessions.events import Kind
from flows.sessions.history import append
from flows.sessions.model import Session

Also = Callable[[Connection], None]
"""Further writes in the same transaction."""


class MoveRow(Table):
    """One move."""

    __tablename__ = "moves"

    id: Mapped[str] = mapped_column(primary_key=True)
    session: Mapped[str] = mapped_column(index=True)
    before: Mapped[str]
    after: Mapped[str]
    packages: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    reason: Mapped[str]
    code: Mapped[str | None]
    created: Mapped[datetime] = mapped_column(Instant)
    consent: Mapped[str | None]
    wave: Mapped[int | None]
    damaged: Mapped[bool]
    ended: Mapped[datetime | None] = mapped_column(Instant)
    back_to: Mapped[str] = mapped_column(default="", server_default="")


class StepRow(Table):
    """One line of the journal."""

    __tablename__ = "steps"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    move: Mapped[str] = mapped_column(ForeignKey("moves.id"), index=True)
    step: Mapped[str]
    phase: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)
    note: Mapped[str]
    code: Mapped[str | None]
    data: Mapped[str]


# Made once: to make a statement takes longer than to execute it, and each move has a hundred.
_STEPS, _MOVES = (cast(sqlalchemy.Table, row.__table__) for row in (StepRow, MoveRow))
_ADD = held_insert(_STEPS, ("move", "step", "phase", "at", "note", "code", "data"))
_BEGIN = insert(_MOVES)
_REACH = update(_MOVES).where(_MOVES.c.id == bindparam("of")).values(state=bindparam("reached"))
_END = _REACH.values(
    reason=bindparam("because"), code=bindparam("fact"), damaged=bindparam("harm"), ended=bindparam("at")
)
_MOVE = select(_MOVES).where(_MOVES.c.id == bindparam("of"))
_LAST = (
    select(_MOVES)
    .where(_MOVES.c.session == bindparam("of"))
    .order_by(_MOVES.c.created.desc(), _MOVES.c.id.desc())
    .limit(1)
)
_ENTRIES = (
    select(_STEPS.c.step, _STEPS.c.phase, _STEPS.c.note, _STEPS.c.at, _STEPS.c.code, _STEPS.c.data)
    .where(_STEPS.c.move == bindparam("of"))
    .order_by(_STEPS.c.number)
)


class Journal:
    """All moves, past and present."""

    def __init__(self, database: Engine) -> None:
        self.database = database
        # Moves that this process has begun it needn't read: as long as it holds the lease, nobody else writes.
        self._lines: dict[str, tuple[Entry, ...]] = {}
        self._noted: dict[str, tuple[Entry, ...]] = {}
        self._reached: dict[str, State] = {}

    def begin(
        self,
        held: Lease,
        before: Session,
        after: Session,
        packages: str,
        *,
        consent: Consent | None = None,
        wave: int | None = None,
        by: str = "",
        back_to: str = "",
    ) -> Move:
        """Write down that a session is to be moved, and who wants that; see `Move`."""
        id, created = f"{after.name}-{after.generation}-{uuid4().hex[:8]}", now()
        move = Move(id, before, after, packages, State.planned, "", created, consent, wave, back_to=back_to)
        note = "; ".join(filter(None, (f"from {before.image}", packages, consent.text if consent else "")))
        row = {**vars(move), "session": before.name, "before": before.to_json(), "after": after.to_json()}

        def begin(connection: Connection) -> None:
            connection.execute(_BEGIN, row)
            append(connection, Kind.move_begun, session=before.name, image=after.image, by=by, what=note)

        self._write(held, move, (), begin)
        self._lines[id] = ()
        return move

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        """Add a line to the journal of a move; `also` joins its transaction.

        Raises:
            LeaseLost: somebody else acts on this session now; nothing was written.
        """
        entry = replace(entry, at=now())

        def add(connection: Connection) -> None:
            if entry.phase is Phase.reopened:
                connection.execute(_REACH, {"of": move.id, "reached": state(_entries(connection, move.id))})
            if also:
                also(connection)

        lines = self._lines.get(move.id)
        if entry.phase is Phase.reopened:
            self._reached.pop(move.id, None)
        self._write(held, move, (*self._noted.get(move.id, ()), entry), add)
        if lines is not None:
            self._lines[move.id] = (*lines, entry)

    def note(self, held: Lease, move: Move, entry: Entry) -> None:
        """Add a line that is written with the next one: together they wait for the disk once.

        A process that is killed in between has an effect that nobody wrote down, as if it had been killed a moment
        before.
        """
        if (lines := self._lines.get(move.id)) is None:
            self.write(held, move, entry)
            return
        entry = replace(entry, at=now())
        self._lines[move.id] = (*lines, entry)
        self._noted[move.id] = (*self._noted.get(move.id, ()), entry)

    def end(
        self,
        held: Lease,
        move: Move,
        final: State,
        reason: str,
        *,
        code: Code | None = None,
        damaged: bool = False,
    ) -> Move:
        """Write down how a move has ended."""
        name, down = move.before.name, downtime(self.entries(move))
        took = "" if down is None else f"{down:.2f} s away"
        note = "; ".join(filter(None, (str(final), took, reason)))
        row = {"of": move.id, "reached": final, "because": reason, "fact": code, "harm": damaged, "at": now()}

        def end(connection: Connection) -> None:
            connection.execute(_END, row)
            data = {"state": final}
            append(connection, Kind.move_ended, session=name, image=move.after.image, what=note, data=data)

        self._write(held, move, self._noted.get(move.id, ()), end)
        self._forget(move.id)
        return self.move(move.id)

    def take_over(self, id: str) -> Move:
        """The move as it is now, for who has just got its lease: others may have gone on with it."""
        self._forget(id)
        return self.move(id)

    def move(self, id: str) -> Move:
        """The move as it is now."""
        with self.database.connect() as connection:
            return _move(connection.execute(_MOVE, {"of": id}).one())

    def entries(self, move: Move) -> tuple[Entry, ...]:
        """All lines of a move, oldest first."""
        if (lines := self._lines.get(move.id)) is not None:
            return lines
        with self.database.connect() as connection:
            return _entries(connection, move.id)

    def unfinished(self, session: str = "") -> tuple[Move, ...]:
        """The moves that have not ended, of one session or of all, oldest first."""
        chosen = select(MoveRow).where(MoveRow.state.not_in(FINAL)).order_by(MoveRow.created)
        with Transaction(self.database) as transaction:
            rows = transaction.scalars(chosen.where(MoveRow.session == session) if session else chosen)
            return tuple(map(_move, rows))

    def downtimes(self, number: int) -> tuple[float, ...]:
        """How many seconds sessions were away in the latest moves that came to their end, so many at most."""
        chosen = select(MoveRow.id).where(MoveRow.state == State.cleaned).order_by(MoveRow.created.desc())
        with Transaction(self.database) as transaction:
            moves = transaction.scalars(chosen.limit(number)).all()
            downtimes = (downtime(_entries(transaction.connection(), move)) for move in moves)
            return tuple(seconds for seconds in downtimes if seconds is not None)

    def history(self, session: str = "") -> tuple[Move, ...]:
        """The moves of one session, or of all, oldest first."""
        chosen = select(MoveRow).order_by(MoveRow.created, MoveRow.id)
        with Transaction(self.database) as transaction:
            rows = transaction.scalars(chosen.where(MoveRow.session == session) if session else chosen)
            return tuple(map(_move, rows))

    def latest(self) -> dict[str, Move]:
        """Session → its latest move."""
        return {move.before.name: move for move in self.history()}

    def last(self, session: str) -> Move | None:
        """The latest move of a session; none: it was never moved."""
        with self.database.connect() as connection:
            row = connection.execute(_LAST, {"of": session}).first()
            return _move(row) if row else None

    def since(self, moment: datetime | None) -> tuple[Past, ...]:
        """The moves that have not ended, or not before a moment (none: all moves), oldest first."""
        chosen = select(_MOVES).order_by(_MOVES.c.created, _MOVES.c.id)
        if moment:
            chosen = chosen.where(or_(_MOVES.c.ended.is_(None), _MOVES.c.ended >= moment))
        with self.database.connect() as connection:
            return tuple(map(_past, connection.execute(chosen)))

    def _write(self, held: Lease, move: Move, lines: Sequence[Entry], also: Also) -> None:
        """Write lines, and what state they lead to; a copy of the move that was read before may be out of date then."""
        rows = [{**vars(entry), "move": move.id} for entry in lines]
        reached, furthest = next(filter(None, map(leads_to, reversed(lines))), None), self._reached.get(move.id)

        def write_lines(connection: Connection) -> None:
            if rows:
                insert_held(connection, _ADD, rows, held)
            else:
                still_held(connection, held)
            if reached and reached is not furthest:  # many steps lead to the same state
                connection.execute(_REACH, {"of": move.id, "reached": reached})
            also(connection)

        self._forget(move.id)
        write(self.database, write_lines)
        if latest := reached or furthest:
            self._reached[move.id] = latest

    def _forget(self, id: str) -> None:
        for memory in (self._lines, self._noted, self._reached):
            memory.pop(id, None)


def _entries(connection: Connection, move: str) -> tuple[Entry, ...]:
    rows = connection.execute(_ENTRIES, {"of": move})
    return tuple(
        Entry(step, Phase(phase), note, at, Code(code) if code else None, data)
        for step, phase, note, at, code, data in rows
    )


def _past(row: Row[Any]) -> Past:
    image = sys.intern(json.loads(row.after)["image"])
    return Past(row.id, row.session, image, State(row.state), row.created, row.wave, row.damaged, row.ended)


def _move(row: MoveRow | Row[Any]) -> Move:
    return Move(
        id=row.id,
        before=Session.from_json(row.before),
        after=Session.from_json(row.after),
        packages=row.packages,
        state=State(row.state),
        reason=row.reason,
        created=row.created,
        consent=Consent(row.consent) if row.consent else None,
        wave=row.wave,
        damaged=row.damaged,
        ended=row.ended,
        code=Code(row.code) if row.code else None,
        back_to=row.back_to,
    )
