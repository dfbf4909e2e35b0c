"""The contract of databases: derive a class from `DatabaseContract` and give it the fixture `url`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session as Rows

from flows.catalog.model import Access
from flows.core import database, leases, schema_versions
from flows.core.errors import RefitError
from flows.core.leases import LeaseLost, LeaseTaken, lease
from flows.core.settings.spans import Span
from flows.images.build import Built
from flows.images.distributed.job_queue import Jobs, Outcome, Work
from flows.images.ledger import Ledger
from flows.images.stages import Entry as Build
from flows.images.stages import Kind, Stage
from flows.migrations.journal import Journal
from flows.migrations.move import Entry, Phase
from flows.migrations.move_steps import State
from flows.migrations.rollouts.store import Rollouts
from flows.sessions import history
from flows.sessions.events import Kind as EventKind
from flows.sessions.model import HomeRef, Session, TokenRef
from flows.sessions.preferences import chosen_hours, chosen_mode
from flows.sessions.store import HomeRow, NameTaken, Store
from flows.sessions.wishes import PreferenceStore
from tests.support.processes import in_a_process
from tests.support.waiting import PATIENCE, wait_until


def open_many(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(database.open_database, [url] * 8))


def count(url: str, file: Path) -> None:
    engine = database.open_database(url)
    for _ in range(10):
        with lease(engine, "counter"):
            number = int(file.read_text())
            time.sleep(0.002)
            file.write_text(str(number + 1))


def hold_and_die(url: str) -> None:
    with lease(database.open_database(url), "tag", seconds=10 * PATIENCE):
        os.kill(os.getpid(), signal.SIGKILL)


def in_processes(number: int, target: Callable[..., None], *args: object) -> list[int | None]:
    """Call a function in so many new processes at once; returns their exit codes."""
    processes = [in_a_process(partial(target, *args)) for _ in range(number)]
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def a_session(uid: int = 200_000) -> Session:
    return Session("ann", "p", "2026a", "sha256:1", uid, HomeRef("/home"), TokenRef("/token"), Access())


class DatabaseContract:
    """Fixture: `url`, of a database in which nothing is yet."""

    @pytest.fixture
    def engine(self, url: str) -> Iterator[Engine]:
        opened = database.open_database(url)
        yield opened
        opened.dispose()

    def test_the_schema_is_brought_up_to_date_and_matches_the_models(self, url: str, engine: Engine) -> None:
        database.open_database(url).dispose()
        for table in database.Table.metadata.sorted_tables:
            assert {c["name"] for c in inspect(engine).get_columns(table.name)} == {c.name for c in table.columns}

    def test_many_may_open_a_new_database_at_once(self, url: str) -> None:
        assert in_processes(3, open_many, url) == [0, 0, 0]

    def test_what_a_write_has_read_still_holds_when_it_changes_it(self, url: str, engine: Engine) -> None:
        """Two engines, as two processes have."""
        both = [engine, database.open_database(url)]
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE counts (number INTEGER)")
            connection.exec_driver_sql("INSERT INTO counts VALUES (0)")

        def count(connection: Connection) -> None:
            number = connection.exec_driver_sql("SELECT number FROM counts").scalar_one()
            time.sleep(0.001)
            connection.exec_driver_sql(f"UPDATE counts SET number = {number + 1}")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda turn: database.write(both[turn % 2], count), range(100)))
        both[1].dispose()
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT number FROM counts").scalar_one() == 100

    def test_a_schema_from_the_future_is_a_clear_error(self, url: str, engine: Engine) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(RefitError, match="newer Refit"):
            database.open_database(url)

    @pytest.mark.parametrize("revision", ["0011", "first"])
    def test_a_schema_from_before_the_release_is_refused_and_left_as_it_is(
        self, url: str, engine: Engine, revision: str
    ) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
        with pytest.raises(RefitError, match="before the first release") as refused:
            database.open_database(url)
        assert "end all moves" in refused.value.hint and "refit reset" not in refused.value.hint  # that keeps it
        assert schema_versions.revision(engine) == revision

    def test_the_history_is_one_chain_whoever_writes(self, engine: Engine) -> None:
        standings, events, image = Rollouts(engine), history.History(engine), "sha256:new"
        standings.begin({("p0", "2026a"): image}, {}, "root")

        def write(number: int) -> None:
            events.add(EventKind.noticed, session=f"s{number}")
            standings.approve(image, number, "root", "10 %")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(write, range(12)))
        assert not events.broken()
        approved = standings.all()[image].approved
        assert events.length() == 25 and approved and approved[0] == 11

    def test_a_write_inside_a_write_is_refused_and_the_next_one_goes_on(self, engine: Engine) -> None:
        events = history.History(engine)

        def work(connection: Connection) -> None:
            history.append(connection, EventKind.noticed, session="lost")
            events.add(EventKind.noticed, session="inner")

        with pytest.raises(database.NestedWrite):
            database.write(engine, work)
        events.add(EventKind.noticed, session="next")
        assert [event.session for event in events.events()] == ["next"]

    def test_objects_are_written_whole_or_not_at_all(self, engine: Engine) -> None:
        def work(rows: Rows, uid: int) -> None:
            rows.add(HomeRow(name=f"home-{uid}", uid=uid, created=database.now()))
            rows.flush()
            rows.add(HomeRow(name=f"another-{uid}", uid=uid // 2 * 2, created=database.now()))

        def add(uid: int) -> None:
            with suppress(IntegrityError):  # of even ones, both would have the same uid
                database.write_rows(engine, partial(work, uid=uid))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(100, 120)))
        assert set(Store(engine).homes().values()) == set(range(100, 120))
        assert all(uid % 2 for name, uid in Store(engine).homes().items() if name.startswith("home"))

    def test_of_what_threads_write_at_once_all_is_there_but_what_failed(self, engine: Engine) -> None:
        def add(number: int) -> None:
            def work(connection: Connection) -> None:
                history.append(connection, EventKind.noticed, session=f"s{number}")
                if number % 5 == 0:
                    raise RefitError(f"{number} fails.")

            with suppress(RefitError):
                database.write(engine, work)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(40)))
        events = history.History(engine)
        assert not events.broken()
        assert {event.session for event in events.events()} == {f"s{each}" for each in range(40) if each % 5}

    def test_a_lease_has_one_holder_and_a_growing_fence(self, engine: Engine) -> None:
        with lease(engine, "tag") as first:
            with pytest.raises(LeaseTaken, match="being written by another run"), lease(engine, "tag", wait=0.2):
                pass
            with lease(engine, "another tag"):
                pass
        with lease(engine, "tag") as second:
            assert second.fence == first.fence + 1

    def test_whoever_waits_for_a_lease_is_told_so(self, engine: Engine) -> None:
        told: list[str] = []
        with (
            lease(engine, "mine", waits=lambda: told.append("first")),
            pytest.raises(LeaseTaken),
            lease(engine, "mine", wait=0.2, waits=lambda: told.append("second")),
        ):
            pass
        assert told == ["second"]

    def test_a_crashed_holder_loses_the_lease(self, engine: Engine) -> None:
        crashed = leases._take(engine, "tag", "crashed", seconds=0.3)
        assert crashed is not None
        with lease(engine, "tag", wait=PATIENCE) as held:
            assert held.fence == crashed.fence + 1

    def test_a_wish_is_kept_until_its_session_goes_and_who_said_it_for_ever(self, engine: Engine) -> None:
        store, wishes = Store(engine), PreferenceStore(engine)
        store.add("ann", a_session, uids=Span(first=200_000, last=200_009))
        told = wishes.change("ann", "ann", **chosen_mode("pin", "2026-12-24"), snoozed_until=database.now())
        wished = wishes.change("ann", "bob", **chosen_hours(("22:00-07:00", "sat 00:00-24:00"), "Europe/Zurich"))
        assert wishes.all() == {"ann": wished} and wished.snoozed_until == told.snoozed_until
        store.forget("ann")
        assert wishes.all() == {}
        assert [change.by for change in wishes.changes("ann")] == ["ann", "bob"]

    def test_f19_a_crashed_holder_loses_the_lease_though_the_clock_went_back(self, engine: Engine) -> None:
        crashed = leases._take(engine, "tag", "crashed", seconds=3600)
        assert crashed is not None
        with lease(engine, "tag", seconds=0.5, wait=PATIENCE) as held:
            assert held.fence == crashed.fence + 1

    def test_a_holder_that_was_killed_loses_the_lease_at_once(self, url: str, engine: Engine) -> None:
        assert in_processes(1, hold_and_die, url) == [-signal.SIGKILL]
        with lease(engine, "tag", wait=PATIENCE) as held:
            assert held.fence == 2

    def test_processes_exclude_each_other(self, url: str, engine: Engine, tmp_path: Path) -> None:
        file = tmp_path / "counter"
        file.write_text("0")
        assert in_processes(3, count, url, file) == [0, 0, 0]
        assert file.read_text() == "30"

    def test_a_lease_is_renewed_for_as_long_as_its_holder_lives(self, engine: Engine) -> None:
        with lease(engine, "tag", seconds=0.6) as held:

            def until() -> datetime:
                state = leases._state(engine, "tag")
                assert state and state[0] == held.fence
                return state[1]

            first = until()
            wait_until(lambda: until() > first + timedelta(seconds=1.2))
        with lease(engine, "another tag", seconds=10 * PATIENCE):
            assert leases._take(engine, "another tag", "somebody else", seconds=1) is None

    def test_who_asks_which_leases_are_held_hears_of_no_others(self, engine: Engine) -> None:
        with lease(engine, "session given_back"):
            pass
        assert leases._take(engine, "session ran out", "slept too long", seconds=0.01)
        time.sleep(0.02)
        with lease(engine, "session ann"), lease(engine, "session bob"), lease(engine, "stage 1"):
            assert leases.held(engine, "session ") == ("session ann", "session bob")
            assert leases.held(engine, "session ", besides={"session ann"}) == ("session bob",)
        assert leases.held(engine, "session ") == ()

    def test_who_has_lost_the_lease_writes_nothing(self, engine: Engine) -> None:
        slept = leases._take(engine, "tag", "slept too long", seconds=0.01)
        assert slept
        time.sleep(0.02)
        later = lease(engine, "tag")
        with later, pytest.raises(LeaseLost), engine.begin() as connection:
            leases.still_held(connection, slept)

    def test_a_journal_tells_a_move_in_order(self, engine: Engine) -> None:
        journal, before = Journal(engine), a_session()
        after = replace(before, image="sha256:2", generation=2)
        with lease(engine, "session ann") as held:
            move = journal.begin(held, before, after, "vim 1 → 2")
            for phase in (Phase.intent, Phase.done):
                journal.write(held, move, Entry("check", phase, phase.value))
            assert journal.unfinished() == (journal.move(move.id),)
            ended = journal.end(held, move, State.cleaned, "")
        assert [(entry.step, entry.phase, entry.note) for entry in journal.entries(move)] == [
            ("check", Phase.intent, "intent"),
            ("check", Phase.done, "done"),
        ]
        assert (ended.before, ended.after, ended.state) == (before, after, State.cleaned)
        assert ended.created == move.created and ended.created.tzinfo == UTC
        assert journal.unfinished() == ()
        assert journal.latest() == {"ann": ended} and journal.last("ann") == ended and journal.last("bob") is None
        [past] = journal.since(None)
        assert (past.id, past.session, past.image, past.state) == (move.id, "ann", "sha256:2", State.cleaned)
        assert journal.since(ended.ended) == (past,)
        assert ended.ended and journal.since(ended.ended + timedelta(seconds=1)) == ()
        with pytest.raises(LeaseLost):
            journal.write(replace(held, fence=held.fence + 1), move, Entry("clean", Phase.intent))

    def test_the_digest_of_a_stage_that_was_recorded_first_counts(self, engine: Engine) -> None:
        ledger = Ledger(engine)
        with lease(engine, "stage 1") as mine:
            assert ledger.record("bundle", Build("1", "sha256:a", {"files": {"a": "1"}}, 2.0), mine) == "sha256:a"
            assert ledger.record("bundle", Build("1", "sha256:b", {}, 3.0), mine) == "sha256:a"
        assert ledger.latest(["bundle", "another"]) == {"bundle": Build("1", "sha256:a", {"files": {"a": "1"}}, 2.0)}
        with lease(engine, "stage 1"), pytest.raises(LeaseLost):
            ledger.forget("1", mine)

    def test_a_job_is_done_by_one_builder_and_counts_only_while_that_has_it(self, engine: Engine) -> None:
        jobs, wheels = Jobs(engine, "1"), Stage("wheels", Kind.wheels, None, "RUN true", {"a": b"\xff\x00"})
        works = [
            Work(
                Stage(name, Kind.closed, "base", "", wheels=wheels),
                Built("base", "1", None, "sha256:a"),
                True,
                {"a": "1"},
            )
            for name in ("low", "high", "other")
        ]
        with jobs.helped():
            for work, system, urgency in zip(works, ("deb12", "deb12", "deb13"), (1.0, 2.0, 3.0), strict=True):
                jobs.add(system, urgency, work)
            assert [*jobs.ready(["deb12"])] == ["high", "low"] and jobs.work("high") == works[1]
            with jobs.joined("host", ["deb12", "deb13"]), jobs.taken("high") as mine:
                assert jobs.builders() == {"host": ("deb12", "deb13")}
                assert [*jobs.ready(["deb12", "deb13"])] == ["other", "low"]
                with pytest.raises(LeaseTaken), jobs.taken("high"):
                    pass
                with pytest.raises(LeaseLost):
                    jobs.end("high", Outcome(), "late", replace(mine, fence=mine.fence - 1))
                jobs.end("high", Outcome(problem=("what", "why", "hint")), "failed on host", mine)
            assert jobs.work("high") is None and [*jobs.ready(["deb12"])] == ["low"]
            [ended] = [state for state in jobs.states() if state.outcome]
            assert (ended.stage, ended.taken, ended.note) == ("high", False, "failed on host")
            with pytest.raises(RefitError, match="what"):
                assert ended.outcome and ended.outcome.result()

    def test_jobs_of_a_run_that_died_go_with_those_of_another(self, engine: Engine) -> None:
        died, lives, ends = (Jobs(engine, name) for name in ("died", "lives", "ends"))
        with lives.helped(), ends.helped():
            for jobs in (died, lives, ends):
                jobs.add("deb12", 1.0, Work(Stage("base", Kind.bootstrap, None, ""), None, True, {}))
            assert (died.is_wanted, ends.is_wanted) == (False, True)
            ends.clear()
            assert (ends.is_wanted, lives.is_wanted) == (False, True)
        assert (died.states(), ends.states()) == ((), ()) and len(lives.states()) == 1

    def test_two_sessions_never_share_a_name_or_a_uid(self, engine: Engine) -> None:
        store, uids = Store(engine), Span(first=200_000, last=200_009)

        def add(name: str) -> Session:
            return store.add(name, lambda uid: replace(a_session(uid), name=name), uids=uids)

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(add, [f"dev-{number}" for number in range(8)]))
        assert len({session.uid for session in made}) == 8
        assert store.sessions() == tuple(made)
        with pytest.raises(NameTaken):
            add("dev-3")
