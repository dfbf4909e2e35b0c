"""SQLite keeps the contract of databases; and URLs that can't be used."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import TimeoutError as NoConnection

from flows.core import database
from flows.core.errors import RefitError
from flows.sessions.events import Kind
from flows.sessions.history import History, append
from tests.conftest import PATIENCE, wait_until
from tests.database_contract import DatabaseContract


class TestSqlite(DatabaseContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/refit.db"

    def test_what_threads_write_at_once_goes_to_the_disk_together(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commits: list[object] = []
        event.listen(engine, "commit", commits.append)
        calls, write = list[Engine](), database._Writes._write

        def counted(writes: Any, asked: Engine) -> None:
            calls.append(asked)
            write(writes, asked)

        monkeypatch.setattr(database._Writes, "_write", counted)
        others, history, begun = 5, History(engine), Event()

        def until_all_wait(connection: Connection) -> None:
            append(connection, Kind.noticed)
            begun.set()
            until = monotonic() + 10
            while len(database._writes[engine]._waiting) < others and monotonic() < until:
                sleep(0.01)

        with ThreadPoolExecutor(1 + others) as pool:
            pool.submit(database.write, engine, until_all_wait)
            assert begun.wait(PATIENCE)
            list(pool.map(lambda number: history.add(Kind.noticed, session=f"s{number}"), range(others)))
        assert history.length() == 1 + others
        assert len(commits) == 2
        assert len(calls) < 1 + others  # what is called for nothing piles up


def test_a_database_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(RefitError, match="can't be opened"):
        database.open_database("sqlite:////proc/nowhere/refit.db")


@pytest.mark.parametrize("url", ["nonsense", "never://heard.of/it"])
def test_a_url_that_is_none_is_a_clear_error(url: str) -> None:
    with pytest.raises(RefitError, match="can't be used"):
        database.open_database(url)


def test_a_driver_that_is_missing_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(RefitError, match="needs psycopg") as caught:
        database.open_database("postgresql://ann:secret@127.0.0.1/refit")
    assert "refit[postgresql]" in caught.value.fix
    assert "secret" not in str(caught.value)


def test_leases_are_renewed_again_after_any_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extend, asked = database._extend, list[object]()

    def troubled(*words: Any) -> None:
        asked.append(words)
        if len(asked) == 1:
            raise NoConnection("no connection is free")
        extend(*words)

    monkeypatch.setattr(database, "_extend", troubled)
    with database.lease(database.open_database(f"sqlite:///{tmp_path / 'db'}"), "mine", seconds=0.3):
        wait_until(lambda: len(asked) > 2)
