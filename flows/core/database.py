"""Refit's database: facts that neither registry nor engine can hold (intents, leases, history, owners of uids).

SQLite by default, PostgreSQL by URL; the schema is versioned (Alembic) and brought up to date when it is opened.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as all_done
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, DateTime, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.types import TypeDecorator

from flows.core.errors import RefitError
from flows.core.schema_versions import upgrade

# Threads of a run that moves hundreds at once wait for each other; a database that is away says so by itself.
WAIT_SECONDS = 300.0
_WRITE_KEY = 5_163_210  # of PostgreSQL's advisory lock that a write holds; any number that nothing else uses
# A machine that has vanished in the middle of a write keeps others from writing for as long.
_BEGIN_ON_POSTGRESQL = (
    "SET LOCAL idle_in_transaction_session_timeout = '60s'",
    f"SELECT pg_advisory_xact_lock({_WRITE_KEY})",
)


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


Written = TypeVar("Written")


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
    _writes[engine] = _Writes()
    try:
        if engine.dialect.name == "sqlite" and engine.url.database:
            _make_private(Path(engine.url.database))
        upgrade(engine)
    except (DBAPIError, OSError) as error:
        raise RefitError(
            f"Refit's database {engine.url.render_as_string(hide_password=True)} can't be opened.",
            why=str(getattr(error, "orig", error)),
            hint="check `database_url` in settings.yaml, and that the server runs.",
        ) from None
    return engine


class DataVersion:
    """Tells without reading a table whether anything was committed, by whichever process.

    A connection of its own asks SQLite, which counts the commits of all others. Nobody knows that of another database.
    """

    def __init__(self, database: Engine) -> None:
        file = database.url.database if database.dialect.name == "sqlite" else None
        self._lock, self._connection = threading.Lock(), None
        if file and file != ":memory:":
            # Without transactions of its own, it would else see one state for ever.
            self._connection = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)

    def now(self) -> object:
        """A value that equals an earlier one only if nothing was committed in between."""
        if self._connection is None:
            return object()
        with self._lock:
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return version


def _make_private(file: Path) -> None:
    """SQLite gives its journals the mode of the database; its content is nobody else's business."""
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
            hint="for PostgreSQL: pip install 'refit[postgresql]', where Refit itself is installed.",
        ) from None
    except ArgumentError as error:
        raise RefitError("`database_url` can't be used.", why=str(error), hint="write it as SQLAlchemy does.") from None


def _set_up(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # An intent has to be on the disk before the side effect that it announces.
    # The caches of all connections add up (KB), and the system keeps it anyway.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-512"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def write(engine: Engine, work: Callable[[Connection], Written]) -> Written:
    """Do `work` in a transaction, and return what it returns once that is on the disk. Nothing else writes.

    Args:
        engine: from `open_database`.
        work: a function without effects outside of its transaction: it may be rolled back and called once more.

    Raises:
        NestedWrite: this is called by the `work` of another write to the same database.
        Exception: raised by `work`; then nothing of it was written.
    """
    if engine in _writing.get():
        raise NestedWrite("A write was asked for inside a write to the same database: use the connection of that one.")

    def inside(connection: Connection) -> Written:
        before = _writing.set(_writing.get() | {engine})
        try:
            return work(connection)
        finally:
            _writing.reset(before)

    context = copy_context()
    return _writes[engine].add(engine, lambda connection: context.run(inside, connection))


def write_rows(engine: Engine, work: Callable[[Session], Written]) -> Written:
    """As `write`, for `work` with objects: those that it leaves changed in its session are written as well."""

    def inside(connection: Connection) -> Written:
        with Session(connection) as session:
            result = work(session)
            session.flush()
            return result

    return write(engine, inside)


class NestedWrite(RuntimeError):
    """A write inside a write to the same database: it would wait for itself."""


class _Writes:
    """Writes of several threads at the same time go to the disk together.

    A database lets one write at a time, so that what a write has read still holds when it changes it. A connection that
    waits for its turn with SQLite sleeps and tries again: of hundreds, some would never get theirs. So one thread
    writes for all, and the disk is waited for once. A write that spoils such a transaction is found by doing each by
    itself.
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
        self._called = False  # first: work that is added from here on may come too late for this call
        together = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if together:
            _write_together(engine, together)


def _write_together(engine: Engine, writes: Sequence[tuple[Callable[[Connection], Any], Future[Any]]]) -> None:
    try:
        with engine.begin() as connection:
            _let_nobody_else_write(connection)
            results = [work(connection) for work, _ in writes]
    except BaseException as error:
        if len(writes) == 1:
            writes[0][1].set_exception(error)
        else:
            for write in writes:
                _write_together(engine, [write])
    else:
        for (_, done), result in zip(writes, results, strict=True):
            done.set_result(result)


def _let_nobody_else_write(connection: Connection) -> None:
    """Wait for other processes' writes, so that nothing is written after what the transaction reads."""
    begin = ("BEGIN IMMEDIATE",) if connection.dialect.name == "sqlite" else _BEGIN_ON_POSTGRESQL
    for statement in begin:
        connection.exec_driver_sql(statement)


_writes: WeakKeyDictionary[Engine, _Writes] = WeakKeyDictionary()
_writing: ContextVar[frozenset[Engine]] = ContextVar("databases that are written to", default=frozenset())


def _forget_threads() -> None:
    """Begin anew in a process that was forked: it has no threads, and its connections are those of the other."""
    for engine in list(_writes):
        engine.dispose(close=False)
        _writes[engine] = _Writes()


os.register_at_fork(after_in_child=_forget_threads)
