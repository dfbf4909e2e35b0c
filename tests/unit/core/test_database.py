"""SQLite keeps the contract of databases; and URLs that can't be used."""

import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import TimeoutError as NoConnection

from flows.core import database, leases, schema_versions
from flows.core.errors import RefitError
from flows.sessions.events import Kind
from flows.sessions.history import History, append
from tests.support import fresh_databases
from tests.support.database_contract import DatabaseContract
from tests.support.waiting import PATIENCE, wait_until


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
            until = monotonic() + PATIENCE
            while len(database._writes[engine]._waiting) < others and monotonic() < until:
                sleep(0.01)

        with ThreadPoolExecutor(1 + others) as pool:
            pool.submit(database.write, engine, until_all_wait)
            assert begun.wait(PATIENCE)
            list(pool.map(lambda number: history.add(Kind.noticed, session=f"s{number}"), range(others)))
        assert history.length() == 1 + others
        assert len(commits) == 2
        assert len(calls) < 1 + others  # what is called for nothing piles up


def test_a_process_that_was_forked_writes_by_itself(tmp_path: Path) -> None:
    engine = database.open_database(f"sqlite:///{tmp_path / 'db'}")
    history = History(engine)
    history.add(Kind.noticed, session="before")  # the thread that writes is there now, and isn't in the other process
    if not (child := os.fork()):
        try:
            History(engine).add(Kind.noticed, session="child")
        finally:
            os._exit(0)
    wait_until(lambda: os.waitpid(child, os.WNOHANG)[0])
    history.add(Kind.noticed, session="after")
    assert [event.session for event in history.events()] == ["before", "child", "after"]


LATE = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from flows.core.database import open_database
from flows.sessions.events import Kind
from flows.sessions.history import History
history = History(open_database(sys.argv[1]))
def late():
    threading.main_thread().join()
    while True:  # until no pool takes anything up any more
        try:
            ThreadPoolExecutor(1).submit(int)
        except RuntimeError:
            break
    history.add(Kind.noticed, session="late")
threading.Thread(target=late).start()
"""


@pytest.mark.slow
def test_what_a_thread_writes_while_python_ends_is_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}"
    subprocess.run([sys.executable, "-c", LATE, url], check=True, timeout=PATIENCE)
    assert [event.session for event in History(database.open_database(url)).events()] == ["late"]


WRITES = """
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from flows.core.database import open_database
from flows.sessions.events import Kind
from flows.sessions.history import History
history = History(open_database(sys.argv[1]))
def add(number):
    history.add(Kind.noticed, session=str(number))
    os.write(1, f"{number}\\n".encode())
with ThreadPoolExecutor(8) as pool:
    list(pool.map(add, range(100_000)))
"""


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_was_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}"
    with subprocess.Popen([sys.executable, "-c", WRITES, url], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        said = [writer.stdout.readline() for _ in range(200)]
        writer.kill()
        said += writer.stdout.readlines()
    history = History(database.open_database(url))
    assert not history.broken()
    assert {line.strip() for line in said if line.endswith("\n")} <= {event.session for event in history.events()}


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
    assert "refit[postgresql]" in caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_leases_are_renewed_again_after_any_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extend, asked = leases._extend, list[object]()

    def troubled(*words: Any) -> None:
        asked.append(words)
        if len(asked) == 1:
            raise NoConnection("no connection is free")
        extend(*words)

    monkeypatch.setattr(leases, "_extend", troubled)
    with leases.lease(database.open_database(f"sqlite:///{tmp_path / 'db'}"), "mine", seconds=0.3):
        wait_until(lambda: len(asked) > 2)


def test_the_newest_version_of_the_schema_is_known_without_alembic() -> None:
    assert ScriptDirectory(str(schema_versions._SCHEMA)).get_heads() == [schema_versions.NEWEST]


def test_fresh_databases_of_tests_are_as_alembic_makes_them(tmp_path: Path) -> None:
    dumps = []
    for make in (fresh_databases.run_versions, fresh_databases._BY_ALEMBIC):
        engine = create_engine(f"sqlite:///{tmp_path}/{len(dumps)}.db")
        with engine.begin() as connection:
            make(connection, "")
        with closing(sqlite3.connect(tmp_path / f"{len(dumps)}.db")) as written:
            dumps.append(sorted(written.iterdump()))
        engine.dispose()
    assert dumps[0] == dumps[1]
    assert any(schema_versions.NEWEST in line for line in dumps[0])


def test_the_version_of_the_data_tells_of_each_commit_of_others_and_of_nothing_else(tmp_path: Path) -> None:
    engine = database.open_database(url := f"sqlite:///{tmp_path}/refit.db")
    other = database.open_database(url)
    version = database.DataVersion(engine)
    seen = [version.now()]
    assert version.now() == seen[0]
    History(other).events("ada")
    assert version.now() == seen[0], "reading is no change"
    for writer in (engine, other, engine):
        database.write(writer, lambda connection: append(connection, Kind.noticed))
        seen.append(version.now())
        assert version.now() == seen[-1]
    assert len(set(seen)) == len(seen)

    def fails(connection: Connection) -> None:
        append(connection, Kind.noticed)
        raise ValueError

    with pytest.raises(ValueError):
        database.write(other, fails)
    assert version.now() == seen[-1], "what was rolled back is no change"


def test_no_version_of_a_database_in_memory_is_equal_to_another() -> None:
    version = database.DataVersion(create_engine("sqlite://"))
    assert version.now() != version.now()
