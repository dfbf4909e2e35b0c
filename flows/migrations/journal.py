"""The journal of moves: every intent is on the disk before its side effect, every outcome after it.

Only the holder of the session's lease writes, and every line is checked against it: a process that was taken for dead
and wakes up again can't write, and stops before its next side effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import uuid4

import sqlalchemy
from sqlalchemy import Engine, ForeignKey, bindparam, insert, or_, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.database import Instant, Lease, Table, now, still_held
from flows.migrations.history import Kind, append
from flows.migrations.move import FINAL, Entry, Phase, State, leads_to, state
from flows.sessions.model import Session

Also = Callable[[Transaction], None]
"""What else is written in the same transaction."""


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
    created: Mapped[datetime] = mapped_column(Instant)
    consent: Mapped[str]
    wave: Mapped[int | None]
    damaged: Mapped[bool]
    ended: Mapped[datetime | None] = mapped_column(Instant)


class StepRow(Table):
    """One line of the journal."""

    __tablename__ = "steps"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    move: Mapped[str] = mapped_column(ForeignKey("moves.id"), index=True)
    step: Mapped[str]
    phase: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)
    note: Mapped[str]


# Made once: to make a statement takes longer than to execute it, and each move has a hundred.
_STEPS, _MOVES = (cast(sqlalchemy.Table, row.__table__) for row in (StepRow, MoveRow))
_ADD = insert(_STEPS)
_REACH = update(_MOVES).where(_MOVES.c.id == bindparam("of")).values(state=bindparam("reached"))
_ENTRIES = (
    select(_STEPS.c.step, _STEPS.c.phase, _STEPS.c.note, _STEPS.c.at)
    .where(_STEPS.c.move == bindparam("of"))
    .order_by(_STEPS.c.number)
)


@dataclass(frozen=True)
class Move:
    """One session's migration.

    Attributes:
        id: the session's name, the new generation, and something unique.
        before: the session as it was, with its old image.
        after: the session as it shall be: another image, the next generation.
        packages: what changes, in words.
        state: where the move was when it was read.
        reason: why it ended as it did.
        created: when it was planned.
        consent: why it may be stopped whatever works in it; empty: it may only while nothing does.
        wave: the number of its wave; none: a person named it.
        damaged: it could not be undone, or the home isn't as it was.
        ended: when it ended; none: it has not.
    """

    id: str
    before: Session
    after: Session
    packages: str
    state: State
    reason: str
    created: datetime
    consent: str = ""
    wave: int | None = None
    damaged: bool = False
    ended: datetime | None = None


class Journal:
    """All moves, past and present."""

    def __init__(self, database: Engine) -> None:
        self.database = database

    def begin(
        self,
        held: Lease,
        before: Session,
        after: Session,
        packages: str,
        *,
        consent: str = "",
        wave: int | None = None,
        by: str = "",
    ) -> Move:
        """Write down that a session is to be moved, and who wants that."""
        row = MoveRow(
            id=f"{after.name}-{after.generation}-{uuid4().hex[:8]}",
            session=before.name,
            before=before.to_json(),
            after=after.to_json(),
            packages=packages,
            state=State.planned,
            reason="",
            created=now(),
            consent=consent,
            wave=wave,
            damaged=False,
        )
        told = "; ".join(filter(None, (f"from {before.image}", packages, consent)))
        with self._writing(held) as transaction:
            transaction.add(row)
            transaction.flush()
            append(transaction, Kind.move_begun, session=before.name, image=after.image, by=by, what=told)
            return _move(row)

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        """Add a line to the journal of a move; `also` joins its transaction.

        Raises:
            LeaseLost: somebody else acts on this session now; nothing was written.
        """
        written = {"move": move.id, "step": entry.step, "phase": entry.phase, "at": now(), "note": entry.note}
        with self._writing(held) as transaction:
            transaction.execute(_ADD, written)
            if entry.phase is Phase.reopened:
                reached: State | None = state(_entries(transaction, move.id))
            else:
                reached = leads_to(entry)
            if reached:
                transaction.execute(_REACH, {"of": move.id, "reached": reached})
            if also:
                also(transaction)

    def end(self, held: Lease, move: Move, final: State, reason: str, *, damaged: bool = False) -> Move:
        """Write down how a move has ended."""
        name, down = move.before.name, downtime(self.entries(move))
        took = "" if down is None else f"{down:.2f} s away"
        told = "; ".join(filter(None, (str(final), took, reason)))
        with self._writing(held) as transaction:
            row = transaction.get_one(MoveRow, move.id)
            row.state, row.reason, row.damaged, row.ended = final, reason, damaged, now()
            append(transaction, Kind.move_ended, session=name, image=move.after.image, what=told)
        return self.move(move.id)

    def move(self, id: str) -> Move:
        """The move as it is now."""
        with Transaction(self.database) as transaction:
            return _move(transaction.get_one(MoveRow, id))

    def entries(self, move: Move) -> tuple[Entry, ...]:
        """All lines of a move, oldest first."""
        with Transaction(self.database) as transaction:
            return _entries(transaction, move.id)

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
            found = (downtime(_entries(transaction, move)) for move in moves)
            return tuple(seconds for seconds in found if seconds is not None)

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
        chosen = select(MoveRow).where(MoveRow.session == session).order_by(MoveRow.created.desc(), MoveRow.id.desc())
        with Transaction(self.database) as transaction:
            row = transaction.scalar(chosen.limit(1))
            return _move(row) if row else None

    def since(self, moment: datetime | None) -> tuple[Move, ...]:
        """The moves that have not ended, or not before a moment (none: all moves), oldest first."""
        chosen = select(MoveRow).order_by(MoveRow.created, MoveRow.id)
        if moment:
            chosen = chosen.where(or_(MoveRow.ended.is_(None), MoveRow.ended >= moment))
        with Transaction(self.database) as transaction:
            return tuple(map(_move, transaction.scalars(chosen)))

    @contextmanager
    def _writing(self, held: Lease) -> Iterator[Transaction]:
        with Transaction(self.database) as transaction, transaction.begin():
            still_held(transaction, held)
            yield transaction


def downtime(entries: Sequence[Entry]) -> float | None:
    """Seconds from the request to stop until the IDE answered again; none if that didn't happen."""
    stopped = _moment(entries, "stop", Phase.intent)
    ready = _moment(entries, "revive", Phase.done) or _moment(entries, "answer", Phase.done)
    return (ready - stopped).total_seconds() if stopped and ready else None


def _moment(entries: Sequence[Entry], step: str, phase: Phase) -> datetime | None:
    return next((entry.at for entry in entries if (entry.step, entry.phase) == (step, phase)), None)


def _entries(transaction: Transaction, move: str) -> tuple[Entry, ...]:
    rows = transaction.execute(_ENTRIES, {"of": move})
    return tuple(Entry(step, Phase(phase), note, at) for step, phase, note, at in rows)


def _move(row: MoveRow) -> Move:
    return Move(
        id=row.id,
        before=Session.from_json(row.before),
        after=Session.from_json(row.after),
        packages=row.packages,
        state=State(row.state),
        reason=row.reason,
        created=row.created,
        consent=row.consent,
        wave=row.wave,
        damaged=row.damaged,
        ended=row.ended,
    )
