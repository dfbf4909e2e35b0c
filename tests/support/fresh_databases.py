"""Fresh databases get their schema from one that was made before: Alembic takes 30 ms of CPU for each, of thousands.

The first one of a process is made by Alembic, and so is all that isn't fresh. Processes that tests start do as ever.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from flows.core import schema_versions

_BY_ALEMBIC = schema_versions._run_versions


@cache
def made() -> sqlite3.Connection:
    """A SQLite database in memory, as Alembic makes a fresh one."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with engine.begin() as connection:
        _BY_ALEMBIC(connection, "")
    with engine.connect() as connection:
        return _driver_connection(connection)


def run_versions(connection: Connection, version: str) -> None:
    """Bring the schema from a version up to date."""
    if version or connection.dialect.name != "sqlite" or _tables(connection):
        _BY_ALEMBIC(connection, version)
        return
    # Its statements, one by one, would be as many transactions, which all wait for the disk.
    made().backup(_driver_connection(connection))


def _driver_connection(connection: Connection) -> sqlite3.Connection:
    own = connection.connection.driver_connection
    assert isinstance(own, sqlite3.Connection)
    return own


def _tables(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one())


@pytest.fixture(scope="session", autouse=True)
def fresh_databases() -> Iterator[None]:
    """All fresh databases of this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schema_versions, "_run_versions", run_versions)
        yield
