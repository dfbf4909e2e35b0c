"""Leases: rights to write something that one process holds at a time, renewed while it lives. In Refit's database."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from threading import Condition, Thread
from typing import cast
from uuid import uuid4
from weakref import WeakKeyDictionary

import sqlalchemy
from sqlalchemy import Connection, Engine, bindparam, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Mapped, mapped_column

from flows.core import fence
from flows.core.database import Instant, Table, now, write
from flows.core.errors import RefitError
from flows.core.programs.process_records import ProcessId
from flows.core.waiting import wait_until

LEASE_SECONDS = 60.0


class LeaseRow(Table):
    """The holder who may write a thing now; `fence` grows with every holder, so that a late writer is recognised."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    fence: Mapped[int]
    until: Mapped[datetime] = mapped_column(Instant)


# Made once: to make a statement takes longer than to execute it.
_LEASES = cast(sqlalchemy.Table, LeaseRow.__table__)


_LEASE = select(_LEASES).where(_LEASES.c.name == bindparam("of"))


_OURS = update(_LEASES).where(_LEASES.c.name == bindparam("mine"), _LEASES.c.fence == bindparam("at"))


_TOUCH = _OURS.values(fence=bindparam("at"))


_RENEW = _OURS.values(until=bindparam("then"))


_TAKE = _OURS.values(holder=bindparam("by"), fence=bindparam("next"), until=bindparam("then"))


@dataclass(frozen=True)
class Lease:
    """A right to write `name` that this process holds; `fence` grows with every holder."""

    name: str
    holder: str
    fence: int


class _Holding:
    """A lease that this process holds, or has held: called, it says whether it still does."""

    def __init__(self, engine: Engine, lease: Lease, seconds: float) -> None:
        self.engine, self.lease, self._seconds = engine, lease, seconds
        self._sure = _steady() + seconds / 2

    def __call__(self) -> None:
        """Return only while nobody can take the lease for half as long as it lasts.

        Raises:
            LeaseLost: somebody has taken it.
        """
        began = _steady()
        try:
            state = _state(self.engine, self.lease.name)
            if state is None or state[0] != self.lease.fence:
                raise LeaseLost(self.lease)
            if (state[1] - now()).total_seconds() < self._seconds / 2:
                write(self.engine, self._renew)
        except OperationalError:  # a database that is away for a moment gives the lease to nobody else
            if began > self._sure:
                raise
        else:
            self._sure = began + self._seconds / 2

    def _renew(self, connection: Connection) -> None:
        still_held(connection, self.lease)
        then = {"mine": self.lease.name, "at": self.lease.fence, "then": now() + timedelta(seconds=self._seconds)}
        connection.execute(_RENEW, then)


def _steady() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseTaken(RefitError):
    """Somebody else holds the lease."""

    def __init__(self, name: str, wait: float) -> None:
        super().__init__(
            f"{name!r} is being written by another run.",
            why=f"It still holds the lease after {wait:g} s.",
            hint="wait for that run, or end it and try again.",
        )


class LeaseLost(RefitError):
    """Somebody else took the lease meanwhile: this process may not write any more."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(
            f"This run has lost its lease on {lease.name!r}.",
            why="It did not renew it in time, and another run has taken over.",
            hint="nothing is lost: the other run brings the work to its end.",
        )


@contextmanager
def lease(
    engine: Engine,
    name: str,
    *,
    seconds: float = LEASE_SECONDS,
    wait: float = 120.0,
    waits: Callable[[], object] = lambda: None,
    alone: bool = False,
) -> Iterator[Lease]:
    """Hold the lease `name` inside the `with` block; it is renewed for as long as this process lives.

    A caller that has to wait for it is told so by `waits`. Inside, effects need it (see `fence`), besides the leases
    inside which it is taken; `alone`: no other than this one.

    A holder that died on this machine loses it at once, one that can't be seen from here after `seconds`: by the clock,
    or because it hasn't renewed it for as long as that while we waited, wherever its clock stood or stands now.

    Raises:
        RefitError: somebody else still holds it after `wait` seconds.
    """
    held = _waited_for(engine, name, seconds, wait, waits)
    renewal = renewal_of(engine)
    renewal.begin(engine, held, seconds)
    try:
        with fence.needing(_Holding(engine, held, seconds), alone=alone, number=held.fence):
            yield held
    finally:
        renewal.end(held)
        with suppress(OperationalError):  # then it runs out
            _extend(engine, {held: 0.0})


def _waited_for(engine: Engine, name: str, seconds: float, wait: float, waits: Callable[[], object]) -> Lease:
    """Take a lease, as `lease` says."""
    holder, began = f"{_this_process()} {uuid4().hex}", time.monotonic()
    seen, since = None, began

    def take() -> Lease | None:
        nonlocal seen, since
        taken = _take(engine, name, holder, seconds, seen if time.monotonic() > since + seconds else None)
        if taken is None and time.monotonic() <= began + wait:
            if seen is None:
                waits()
            if (state := _state(engine, name)) != seen:
                seen, since = state, time.monotonic()
        return taken

    if (taken := wait_until(take, enough=lambda taken: taken is not None, seconds=wait, pause=0.05)) is None:
        raise LeaseTaken(name, wait)
    return taken


def held(engine: Engine, prefix: str, besides: Collection[str] = ()) -> tuple[str, ...]:
    """The names of all leases that begin with `prefix` and are held now, by whomever; `besides` some that are known."""
    # A lease that is given back stays as a row that has run out: after a large rollout there are tens of thousands.
    query = select(_LEASES.c.name, _LEASES.c.holder).where(_LEASES.c.until > now())
    with engine.connect() as connection:
        rows = connection.execute(query.where(_LEASES.c.name.startswith(prefix, autoescape=True))).all()
    return tuple(sorted(name for name, holder in rows if name not in besides and not _has_died(holder)))


def still_held(connection: Connection, lease: Lease) -> None:
    """Let the transaction of `connection` succeed only while `lease` is ours.

    Raises:
        LeaseLost: somebody else has taken it.
    """
    # An update locks the row, so that nobody takes the lease before this transaction has ended.
    if connection.execute(_TOUCH, {"mine": lease.name, "at": lease.fence}).rowcount != 1:
        raise LeaseLost(lease)


def still_ours(connection: Connection) -> None:
    """Let the transaction of `connection` succeed only while the leases are ours that effects need here.

    Raises:
        LeaseLost: somebody else has taken one.
    """
    for holding in fence.checks():
        if isinstance(holding, _Holding) and holding.engine is connection.engine:
            still_held(connection, holding.lease)


def held_insert(table: sqlalchemy.Table, names: Sequence[str]) -> sqlalchemy.Insert:
    """A statement for `insert_held`, which inserts rows with columns of these names."""
    new = (bindparam(f"new_{name}", type_=table.c[name].type) for name in names)
    ours = select(*new).where(_LEASES.c.name == bindparam("mine"), _LEASES.c.fence == bindparam("at"))
    return sqlalchemy.insert(table).from_select(names, ours.with_for_update()).execution_options(preserve_rowcount=True)


def insert_held(
    connection: Connection, statement: sqlalchemy.Insert, rows: Sequence[Mapping[str, object]], lease: Lease
) -> None:
    """Insert rows, and ask in the same statement what `still_held` asks; raises as that does."""
    ours = {"mine": lease.name, "at": lease.fence}
    new = [{**{f"new_{name}": value for name, value in row.items()}, **ours} for row in rows]
    if connection.execute(statement, new).rowcount != len(rows):
        raise LeaseLost(lease)


class _Renewal:
    """Renews the leases that this process holds in a database, all in one thread, which ends with the last of them."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._seconds: dict[Lease, float] = {}
        self._due: dict[Lease, float] = {}
        self._thread: Thread | None = None

    def begin(self, engine: Engine, lease: Lease, seconds: float) -> None:
        with self._changed:
            self._seconds[lease], self._due[lease] = seconds, time.monotonic() + seconds / 3
            if self._thread is None:
                self._thread = Thread(target=self._renew, args=(engine,), daemon=True)
                self._thread.start()
            self._changed.notify()

    def end(self, lease: Lease) -> None:
        """From now on it isn't renewed; or it might be just after it was given back."""
        with self._changed:
            del self._seconds[lease], self._due[lease]
            self._changed.notify()

    def _renew(self, engine: Engine) -> None:
        with self._changed:
            try:
                while self._due:
                    if (left := min(self._due.values()) - time.monotonic()) > 0:
                        self._changed.wait(left)
                    else:
                        self._renew_due(engine)
            finally:
                self._thread = None

    def _renew_due(self, engine: Engine) -> None:
        started = time.monotonic()
        due = {lease: self._seconds[lease] for lease, at in self._due.items() if at <= started}
        # All leases count on this thread. The next round may be luckier; one that is lost is found at the next write.
        with suppress(SQLAlchemyError):
            _extend(engine, due)
        self._due |= {lease: started + seconds / 3 for lease, seconds in due.items()}


_renewals: WeakKeyDictionary[Engine, _Renewal] = WeakKeyDictionary()


def _extend(engine: Engine, leases: Mapping[Lease, float]) -> None:
    """Let leases hold for so many seconds from now on."""

    def extend(connection: Connection) -> None:
        began = now()
        until = {lease: began + timedelta(seconds=seconds) for lease, seconds in leases.items()}
        rows = [{"mine": lease.name, "at": lease.fence, "then": then} for lease, then in until.items()]
        connection.execute(_RENEW, rows)

    write(engine, extend)


def _state(engine: Engine, name: str) -> tuple[int, datetime] | None:
    """Fence and end of a lease: they stay the same only while nobody renews it."""
    with engine.connect() as connection:
        row = connection.execute(_LEASE, {"of": name}).one_or_none()
        return (row.fence, row.until) if row else None


def _take(
    engine: Engine, name: str, holder: str, seconds: float, given_up: tuple[int, datetime] | None = None
) -> Lease | None:
    def take(connection: Connection) -> Lease | None:
        until = now() + timedelta(seconds=seconds)
        row = connection.execute(_LEASE, {"of": name}).one_or_none()
        if row is None:
            connection.execute(_LEASES.insert(), {"name": name, "holder": holder, "fence": 1, "until": until})
            return Lease(name, holder, 1)
        if row.until > now() and not _has_died(row.holder) and (row.fence, row.until) != given_up:
            return None
        # The fence in the condition lets exactly one of two takers win.
        mine = {"mine": name, "at": row.fence}
        taken = connection.execute(_TAKE, {**mine, "by": holder, "next": row.fence + 1, "then": until})
        return Lease(name, holder, row.fence + 1) if taken.rowcount == 1 else None

    with suppress(IntegrityError):  # somebody else was the first
        return write(engine, take)
    return None


def _this_process() -> str:
    me = ProcessId.of(os.getpid())
    return f"{_pid_namespace()} {me.boot} {me.pid} {me.started}" if me else "unknown"


def _has_died(holder: str) -> bool:
    """Whether the holder was a process that could be seen from here, and is gone."""
    words = holder.split()
    if len(words) != 5 or words[0] != _pid_namespace():
        return False
    _, boot, pid, started, _ = words
    here = ProcessId.of(os.getpid())
    return here is not None and here.boot == boot and not ProcessId(int(pid), boot, started).alive


def _pid_namespace() -> str:
    return Path("/proc/self/ns/pid").readlink().name


def renewal_of(engine: Engine) -> _Renewal:
    """The renewal of this process's leases in a database."""
    return _renewals.setdefault(engine, _Renewal())


def _forget_renewals() -> None:
    """Begin anew in a process that was forked: it has no threads, and the leases are those of the other."""
    _renewals.clear()


os.register_at_fork(after_in_child=_forget_renewals)
