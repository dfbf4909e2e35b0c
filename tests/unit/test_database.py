import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from sqlalchemy import inspect
from sqlalchemy.orm import Session

from flows import database
from flows.errors import RefitError


def test_the_schema_is_brought_up_to_date_and_matches_the_models(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/refit.db"
    engine = database.open_database(url)
    engine = database.open_database(url)
    for table in database.Table.metadata.sorted_tables:
        assert {c["name"] for c in inspect(engine).get_columns(table.name)} == {c.name for c in table.columns}


def test_a_lease_has_one_holder_and_a_growing_fence(tmp_path: Path) -> None:
    engine = database.open_database(f"sqlite:///{tmp_path}/refit.db")
    with database.lease(engine, "tag") as first:
        with pytest.raises(RefitError, match="being written by another run"), database.lease(engine, "tag", wait=0.2):
            pass
        with database.lease(engine, "another tag"):
            pass
    with database.lease(engine, "tag") as second:
        assert second.fence == first.fence + 1


def test_a_crashed_holder_loses_the_lease(tmp_path: Path) -> None:
    engine = database.open_database(f"sqlite:///{tmp_path}/refit.db")
    crashed = database._take(engine, "tag", "crashed", seconds=0.3)
    assert crashed is not None
    with database.lease(engine, "tag", wait=5) as held:
        assert held.fence == crashed.fence + 1


def _count(url: str, file: Path) -> None:
    engine = database.open_database(url)
    for _ in range(10):
        with database.lease(engine, "counter"):
            number = int(file.read_text())
            time.sleep(0.002)
            file.write_text(str(number + 1))


def test_processes_exclude_each_other(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/refit.db", tmp_path / "counter"
    file.write_text("0")
    database.open_database(url)
    spawn = get_context("spawn")
    processes = [spawn.Process(target=_count, args=(url, file)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert file.read_text() == "30"


def _open(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(database.open_database, [url] * 8))


def test_many_may_open_a_new_database_at_once(tmp_path: Path) -> None:
    spawn = get_context("spawn")
    processes = [spawn.Process(target=_open, args=(f"sqlite:///{tmp_path}/refit.db",)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_a_database_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(RefitError, match="can't be opened"):
        database.open_database("sqlite:////proc/nowhere/refit.db")


def test_a_url_that_is_none_and_a_schema_from_the_future_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(RefitError, match="can't be used"):
        database.open_database("nonsense")
    engine = database.open_database(f"sqlite:///{tmp_path}/refit.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(RefitError, match="newer Refit"):
        database.open_database(f"sqlite:///{tmp_path}/refit.db")


def _hold_and_die(url: str) -> None:
    with database.lease(database.open_database(url), "tag", seconds=600):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_holder_that_was_killed_loses_the_lease_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/refit.db"
    process = get_context("spawn").Process(target=_hold_and_die, args=(url,))
    process.start()
    process.join()
    with database.lease(database.open_database(url), "tag", wait=5) as held:
        assert held.fence == 2


def test_a_lease_is_renewed_for_as_long_as_its_holder_lives(tmp_path: Path) -> None:
    engine = database.open_database(f"sqlite:///{tmp_path}/refit.db")
    first, second = database.lease(engine, "tag", seconds=0.6), database.lease(engine, "tag", wait=1.5)
    with first, pytest.raises(database.LeaseTaken), second:
        pass


def test_who_has_lost_the_lease_writes_nothing(tmp_path: Path) -> None:
    engine = database.open_database(f"sqlite:///{tmp_path}/refit.db")
    slept = database._take(engine, "tag", "slept too long", seconds=0.01)
    assert slept
    time.sleep(0.02)
    later = database.lease(engine, "tag")
    with later, pytest.raises(database.LeaseLost), Session(engine) as session, session.begin():
        database.still_held(session, slept)
