"""Refit's database: what neither the registry nor the engine can hold (intents, leases, history, who owns which uid).

SQLite by default, PostgreSQL by URL; the schema is versioned (Alembic) and brought up to date when it is opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import alembic.command
from alembic.config import Config
from sqlalchemy import DateTime, Engine, create_engine, event, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator

from flows.errors import RefitError


class Instant(TypeDecorator[datetime]):
    """A moment in UTC; SQLite forgets the zone and gets it back here."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: object) -> datetime | None:
        """Moments without a zone are UTC."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Table(DeclarativeBase):
    """Base of all tables."""


class LeaseRow(Table):
    """Who may write a thing now; `fence` grows with every holder, so that a late writer is recognised."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    fence: Mapped[int]
    until: Mapped[datetime] = mapped_column(Instant)


def now() -> datetime:
    """The present moment, UTC."""
    return datetime.now(UTC)


def open_database(url: str) -> Engine:
    """Connect and bring the schema up to date.

    Raises:
        RefitError: the database can't be reached, or its schema is newer than this Refit.
    """
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": 30} if url.startswith("sqlite") else {})
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _durable)
    try:
        _upgrade(engine)
    except OperationalError as error:
        raise RefitError(
            f"Refit's database {engine.url.render_as_string(hide_password=True)} can't be opened.",
            why=str(error.orig),
            fix="check `database_url` in settings.yaml, and that the server runs.",
        ) from None
    return engine


def _durable(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # An intent has to be on the disk before the side effect that it announces.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _upgrade(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "schema"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, "head")


@dataclass(frozen=True)
class Lease:
    """A right to write `name` that this process holds; `fence` grows with every holder."""

    name: str
    holder: str
    fence: int


@contextmanager
def lease(engine: Engine, name: str, *, seconds: float = 60.0, wait: float = 120.0) -> Iterator[Lease]:
    """Hold the lease `name` inside the `with` block; a holder that crashed loses it after `seconds`.

    Raises:
        RefitError: somebody else still holds it after `wait` seconds.
    """
    holder, deadline = uuid4().hex, time.monotonic() + wait
    while (held := _take(engine, name, holder, seconds)) is None:
        if time.monotonic() > deadline:
            raise RefitError(
                f"{name!r} is being written by another run.",
                why=f"It still holds the lease after {wait:g} s.",
                fix="wait for that run, or end it and try again.",
            )
        time.sleep(0.05)
    try:
        yield held
    finally:
        with Session(engine) as session, session.begin():
            mine = (LeaseRow.name == name, LeaseRow.holder == holder)
            session.execute(update(LeaseRow).where(*mine).values(until=now()))


def _take(engine: Engine, name: str, holder: str, seconds: float) -> Lease | None:
    until = datetime.fromtimestamp(time.time() + seconds, UTC)
    with Session(engine) as session:
        try:
            with session.begin():
                row = session.scalar(select(LeaseRow).where(LeaseRow.name == name))
                if row is None:
                    session.add(LeaseRow(name=name, holder=holder, fence=1, until=until))
                    return Lease(name, holder, 1)
                if row.until > now():
                    return None
                fence = row.fence + 1
                # The fence in the condition lets exactly one of two takers win.
                taken = session.execute(
                    update(LeaseRow)
                    .where(LeaseRow.name == name, LeaseRow.fence == row.fence)
                    .values(holder=holder, fence=fence, until=until)
                )
                return Lease(name, holder, fence) if taken.rowcount == 1 else None  # type: ignore[attr-defined]
        except IntegrityError:
            return None
