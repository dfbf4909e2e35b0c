"""Refit's database: what neither the registry nor the engine can hold (intents, leases, history, who owns which uid).

SQLite by default, PostgreSQL by URL; the schema is versioned (Alembic) and brought up to date when it is opened.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as all_done
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Condition, Thread
from typing import Any, TypeVar, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

import sqlalchemy
from sqlalchemy import Connection, DateTime, Engine, bindparam, create_engine, event, make_url, select, text, update
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator

from flows.core import fence
from flows.core.command import ProcessId
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time

# Any number will do, as long as nothing else in the database locks the same.
_UPGRADE_KEY = 0x5EF17
NEWEST = "owners"  # version of the schema
_SCHEMA = Path(__file__).parent / "schema"
_BEFORE_RELEASE = re.compile(r"00\d\d|first")  # versions of the schema that no release had
_upgrading = threading.Lock()
LEASE_SECONDS = 60.0
# Threads of a run that moves hundreds at once wait for each other; a database that is away says so by itself.
WAIT_SECONDS = 300.0


class Instant(TypeDecorator[datetime]):
    """A moment in UTC; SQLite forgets the zone and gets it back here, PostgreSQL takes that of the server."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: object) -> datetime | None:
        """Moments without a zone are UTC."""
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class Table(DeclarativeBase):
    """Base of all tables."""


class LeaseRow(Table):
    """Who may write a thing now; `fence` grows with every holder, so that a late writer is recognised."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    fence: Mapped[int]
    until: Mapped[datetime] = mapped_column(Instant)


Written = TypeVar("Written")
# Made once: to make a statement takes longer than to execute it.
_LEASES = cast(sqlalchemy.Table, LeaseRow.__table__)
_LEASE = select(_LEASES).where(_LEASES.c.name == bindparam("of"))
_OURS = update(_LEASES).where(_LEASES.c.name == bindparam("mine"), _LEASES.c.fence == bindparam("at"))
_TOUCH = _OURS.values(fence=bindparam("at"))
_RENEW = _OURS.values(until=bindparam("then"))
_TAKE = _OURS.values(holder=bindparam("by"), fence=bindparam("next"), until=bindparam("then"))


def now() -> datetime:
    """The present moment, UTC."""
    return datetime.now(UTC)


def open_database(url: str) -> Engine:
    """Connect and bring the schema up to date.

    Raises:
        RefitError: the database can't be reached, or its schema is newer than this Refit, or from before its release.
    """
    engine = _engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_up)
    _writes[engine], _renewals[engine] = _Writes(), _Renewal()
    try:
        if engine.dialect.name == "sqlite" and engine.url.database:
            _make_private(Path(engine.url.database))
        _upgrade(engine)
    except (DBAPIError, OSError) as error:
        raise RefitError(
            f"Refit's database {engine.url.render_as_string(hide_password=True)} can't be opened.",
            why=str(getattr(error, "orig", error)),
            fix="check `database_url` in settings.yaml, and that the server runs.",
        ) from None
    return engine


def _revision(engine: Engine) -> str:
    """The version of the schema that a database has; empty: none."""
    with engine.connect() as connection:
        return _version(connection)


def _version(connection: Connection) -> str:
    there = sqlalchemy.inspect(connection).has_table("alembic_version")
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "" if there else ""


def _make_private(file: Path) -> None:
    """SQLite gives its journals the mode of the database; what is in it is nobody else's business."""
    if file.name != ":memory:":
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)


def _engine(url: str) -> Engine:
    try:
        address = make_url(url)
        if address.drivername in ("postgres", "postgresql"):
            address = address.set(drivername="postgresql+psycopg")
        if address.get_backend_name() == "sqlite":
            # As many connections as may be open stay open: to open one takes longer than most of what is asked.
            pool = {"pool_size": 15, "max_overflow": 0, "pool_timeout": WAIT_SECONDS}
            return create_engine(address, connect_args={"timeout": 30}, **pool)
        # The server may have been restarted meanwhile.
        return create_engine(address, pool_pre_ping=True, pool_timeout=WAIT_SECONDS)
    except ImportError as error:
        raise RefitError(
            f"`database_url` needs {error.name or 'a driver'}, which is not installed.",
            why=str(error),
            fix="for PostgreSQL: pip install 'refit[postgresql]', where Refit itself is installed.",
        ) from None
    except ArgumentError as error:
        raise RefitError("`database_url` can't be used.", why=str(error), fix="write it as SQLAlchemy does.") from None


def _set_up(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # An intent has to be on the disk before the side effect that it announces.
    # What each connection keeps of the file adds up (KB), and the system keeps it anyway.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-512"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def write(engine: Engine, work: Callable[[Connection], Written]) -> Written:
    """Do `work` in a transaction, and return what it returns once that is on the disk. Nothing else writes.

    Args:
        engine: from `open_database`.
        work: what it does is done in its transaction alone: it may be rolled back and done once more.

    Raises:
        NestedWrite: this is called by the `work` of another write to the same database.
        Exception: what `work` raises; then nothing of it was written.
    """
    if engine in _writing.get():
        raise NestedWrite("A write was asked for inside a write to the same database: use the connection of that one.")

    def inside(connection: Connection) -> Written:
        before = _writing.set(_writing.get() | {engine})
        try:
            return work(connection)
        finally:
            _writing.reset(before)

    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            return inside(connection)
    context = copy_context()
    return _writes[engine].add(engine, lambda connection: context.run(inside, connection))


def write_rows(engine: Engine, work: Callable[[Session], Written]) -> Written:
    """As `write`, for `work` with objects: what it leaves changed in its session is written as well."""

    def inside(connection: Connection) -> Written:
        with Session(connection) as session:
            result = work(session)
            session.flush()
            return result

    return write(engine, inside)


class NestedWrite(RuntimeError):
    """A write inside a write to the same database: it would wait for itself."""


class _Writes:
    """What threads write at the same time goes to SQLite's disk together, as a server's does by itself.

    SQLite lets one write at a time, and a connection that waits for its turn sleeps and tries again: of hundreds, some
    would never get theirs. So one thread writes for all, and the disk is waited for once. A write that spoils such a
    transaction is found by doing each by itself.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "writes")
        self._waiting: deque[tuple[Callable[[Connection], Any], Future[Any]]] = deque()
        self._called = False

    def add(self, engine: Engine, work: Callable[[Connection], Written]) -> Written:
        done: Future[Written] = Future()
        self._waiting.append((work, done))
        self._call(engine)
        try:
            return done.result()
        finally:
            all_done([done])  # whoever is interrupted meanwhile must not go on before it is written

    def _call(self, engine: Engine) -> None:
        """Let the thread write what waits, unless it is about to: a call for each would pile up by thousands."""
        if self._called:
            return
        try:
            self._called = True
            self._thread.submit(self._write, engine)
        except RuntimeError:  # Python is about to end, and starts no thread any more
            self._write(engine)
        except BaseException:
            self._called = False  # so that the next one calls
            raise

    def _write(self, engine: Engine) -> None:
        self._called = False  # first: what is added from here on may come too late for this call
        together = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if together:
            _write_together(engine, together)


def _write_together(engine: Engine, writes: Sequence[tuple[Callable[[Connection], Any], Future[Any]]]) -> None:
    try:
        with engine.begin() as connection:
            results = [work(connection) for work, _ in writes]
    except BaseException as error:
        if len(writes) == 1:
            writes[0][1].set_exception(error)
        else:
            for one in writes:
                _write_together(engine, [one])
    else:
        for (_, done), result in zip(writes, results, strict=True):
            done.set_result(result)


_writes: WeakKeyDictionary[Engine, _Writes] = WeakKeyDictionary()
_writing: ContextVar[frozenset[Engine]] = ContextVar("databases that are written to", default=frozenset())


def _forget_threads() -> None:
    """Begin anew in a process that was forked: it has no threads, and its connections are those of the other."""
    for engine in list(_writes):
        engine.dispose(close=False)
        _writes[engine] = _Writes()


os.register_at_fork(after_in_child=_forget_threads)


def _upgrade(engine: Engine) -> None:
    with _one_at_a_time(engine), engine.begin() as connection:
        if (version := _version(connection)) != NEWEST:
            _run_versions(connection, version)


def _run_versions(connection: Connection, version: str) -> None:
    """Bring the schema from a version up to date.

    Raises:
        RefitError: it is none of this Refit's.
    """
    # Alembic takes longer to import than most of what is asked of a database.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_SCHEMA))
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise _foreign(version, str(error)) from None


def _foreign(version: str, why: str) -> RefitError:
    if _BEFORE_RELEASE.fullmatch(version):
        return RefitError(
            "Refit's database was made before the first release.",
            why="This Refit can't read its journal, and so can't resume the moves in it.",
            fix="end all moves with the Refit that made it, and move the database away (its file, or another "
            "`database_url`); then `refit up` records the sessions that it finds.",
        )
    return RefitError(
        "Refit's database was written by a newer Refit.", why=why, fix="install that version, or a newer one."
    )


@contextmanager
def _one_at_a_time(engine: Engine) -> Iterator[None]:
    """Alembic keeps its state in globals, and two processes would both make the first table."""
    with _upgrading:
        if engine.dialect.name == "sqlite":
            with one_at_a_time(Path(f"{engine.url.database}.lock")):
                yield
        else:
            with engine.begin() as connection:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_KEY})
                yield


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
        asked = _steady()
        try:
            state = _state(self.engine, self.lease.name)
            if state is None or state[0] != self.lease.fence:
                raise LeaseLost(self.lease)
            if (state[1] - now()).total_seconds() < self._seconds / 2:
                write(self.engine, self._renew)
        except OperationalError:  # a database that is away for a moment gives the lease to nobody else
            if asked > self._sure:
                raise
        else:
            self._sure = asked + self._seconds / 2

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
            fix="wait for that run, or end it and try again.",
        )


class LeaseLost(RefitError):
    """Somebody else took the lease meanwhile: this process may not write any more."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(
            f"This run has lost its lease on {lease.name!r}.",
            why="It did not renew it in time, and another run has taken over.",
            fix="nothing is lost: the other run brings the work to its end.",
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

    Whoever has to wait for it is told so by `waits`. Inside, effects need it (see `fence`), besides the leases inside
    which it is taken; `alone`: no other than this one.

    A holder that died on this machine loses it at once, one that can't be seen from here after `seconds`: by the clock,
    or because it hasn't renewed it for as long as that while we waited, wherever its clock stood or stands now.

    Raises:
        RefitError: somebody else still holds it after `wait` seconds.
    """
    holder, began = f"{_this_process()} {uuid4().hex}", time.monotonic()
    seen, since = None, began
    while (held := _take(engine, name, holder, seconds, seen if time.monotonic() > since + seconds else None)) is None:
        if time.monotonic() > began + wait:
            raise LeaseTaken(name, wait)
        if seen is None:
            waits()
        if (state := _state(engine, name)) != seen:
            seen, since = state, time.monotonic()
        time.sleep(0.05)
    renewal = _renewals[engine]
    renewal.begin(engine, held, seconds)
    try:
        with fence.needing(_Holding(engine, held, seconds), alone=alone):
            yield held
    finally:
        renewal.end(held)
        with suppress(OperationalError):  # then it runs out
            _extend(engine, {held: 0.0})


def held(engine: Engine, prefix: str, besides: Collection[str] = ()) -> tuple[str, ...]:
    """The names of all leases that begin with `prefix` and are held now, by whomever; `besides` some that are known."""
    # What is given back stays as a row that has run out: after a large rollout there are tens of thousands.
    asked = select(_LEASES.c.name, _LEASES.c.holder).where(_LEASES.c.until > now())
    with engine.connect() as connection:
        rows = connection.execute(asked.where(_LEASES.c.name.startswith(prefix, autoescape=True))).all()
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
        asked = now()
        until = {lease: asked + timedelta(seconds=seconds) for lease, seconds in leases.items()}
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
