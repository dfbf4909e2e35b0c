"""A glance at the database sees what SQLAlchemy sees, or says that it can't."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from flows.core import database, sqlite_query
from flows.core.settings import Settings

QUERY = "SELECT name, uid FROM homes ORDER BY name"


@pytest.fixture
def url(settings: Settings) -> str:
    engine = database.open_database(settings.database)
    homes = text("INSERT INTO homes (name, uid, created, owner) VALUES ('eve', 3, 0, ''), ('ada', 1, 0, '')")
    database.write(engine, lambda connection: connection.execute(homes))
    return settings.database


def test_it_sees_what_was_written_a_moment_ago(url: str) -> None:
    assert sqlite_query.rows(url, QUERY) == (("ada", 1), ("eve", 3))


def test_it_writes_nothing(url: str) -> None:
    assert sqlite_query.rows(url, "DELETE FROM homes RETURNING name") is None
    assert sqlite_query.rows(url, QUERY) == (("ada", 1), ("eve", 3))


@pytest.mark.parametrize("version", ["DELETE FROM alembic_version", "UPDATE alembic_version SET version_num = 'newer'"])
def test_it_leaves_another_schema_to_those_who_bring_it_up_to_date(url: str, version: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(version)
    connection.close()
    assert sqlite_query.rows(url, QUERY) is None


@pytest.mark.parametrize(
    "url", ["postgresql://ann@localhost/refit", "sqlite://", "sqlite:///:memory:", "sqlite:///no.db"]
)
def test_it_leaves_another_database_to_sqlalchemy(url: str) -> None:
    assert sqlite_query.rows(url, QUERY) is None


def test_it_leaves_a_file_that_is_no_database_to_those_who_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "refit.db").write_bytes(b"no database" * 100)
    assert sqlite_query.rows(f"sqlite:///{tmp_path}/refit.db", QUERY) is None
