"""Decisions of the migration's flow itself, and its waiting."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from prefect.logging import disable_run_logger
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.migrate_sessions import _alone, _at_once, _Watch, about_held, migrate_sessions, move_wave
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision, Reason, RolloutStatus
from flows.migrations.results import Result
from flows.migrations.rollouts.reconcile import FailureBudget
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.migrations.rollouts.store import Rollouts
from flows.publishing.signatures import NotPublished, PublicationRow, Publications
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.wishes import PreferenceStore
from flows.signing.trust import Trust
from tests.support.simulated.fleet import fleet
from tests.support.waiting import PATIENCE

IMAGE = f"sha256:{'ab' * 32}"


def test_no_more_are_away_at_once_than_the_strictest_cap_lets() -> None:
    assert _at_once(Settings(), 4) == 4
    tight = Settings.model_validate({"migration": {"unavailable": {"host": 8, "rollout": 2}}})
    assert _at_once(tight, 4) == 2


def test_once_a_move_is_held_no_other_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"s1": (State.held, True)}
    begun, results = moved(tmp_path, monkeypatch, ends, failures=100)
    assert begun == ["s0", "s1"]
    assert [one.state for one in results] == [State.rolled_back, State.held, State.planned, State.planned]
    assert results[3].reason == "s1 is held, and its home may be damaged: first look at that one"


@pytest.mark.parametrize(("failures", "begun"), [(0, 1), (24, 1), (25, 2), (50, 3), (100, 4)])
def test_no_more_of_a_wave_fail_than_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: float, begun: int
) -> None:
    tried, results = moved(tmp_path, monkeypatch, {}, failures=failures)
    assert len(tried) == begun
    assert [one.state for one in results] == [State.rolled_back] * begun + [State.planned] * (4 - begun)
    assert all(one.reason.startswith("others of its wave have failed: s0") for one in results[begun:])


def test_what_is_published_while_sessions_are_moved_is_taken_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.migrations.rollouts.targets._NEWEST_SECONDS", 0)
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        sessions.add(1, sessions.image("old"))
        first, planning = sessions.image("first"), SessionPlanner(sessions.settings)
        (line,) = planning.plan([], "")
        doubts = FailureBudget([line], superseded=planning.superseded)
        assert (line.new, doubts.about(line)) == (first, "")
        sessions.image("second")
        assert doubts.about(line) == Reason.superseded.text


@pytest.mark.slow
def test_what_was_the_newest_before_a_plan_supersedes_nothing_in_it(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        sessions.add(1, sessions.image("old"))
        sessions.image("first")
        planning = SessionPlanner(sessions.settings)
        (line,) = planning.plan([], "")
        assert not planning.superseded(line)
        second = sessions.image("second")
        (line,) = planning.plan([], "")
        assert line.new == second and not planning.superseded(line)


def test_without_a_registry_nothing_is_said_to_be_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise RefitError("The registry doesn't answer.")

    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        sessions.add(1, sessions.image("old"))
        sessions.image("new")
        planning = SessionPlanner(sessions.settings)
        (line,) = planning.plan([], "")
        monkeypatch.setattr(Publications, "newest", away)
        assert not planning.superseded(line)


@pytest.mark.slow
def test_an_image_that_does_not_count_is_planned_for_nobody_and_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        ada = sessions.add(1, sessions.image("old"))
        good = sessions.image("good")
        planning = SessionPlanner(sessions.settings)
        (line,) = planning.plan([], "")
        evil = sessions.image("evil")
        with Session(sessions.database) as session, session.begin():
            session.delete(session.get_one(PublicationRow, evil))
        assert not planning.superseded(line)
        (refused,) = planning.plan([], "", begin=True)
        assert (refused.action, refused.reason, refused.new) == (Action.skip, Reason.refused, "")
        assert "unsigned" in refused.why and evil not in planning._rollouts.all()
        for attempt in (
            lambda: planning.plan([ada.name], ""),
            lambda: planning.plan([], evil),
            lambda: planning.to_image(ada.name, evil),
            lambda: sessions.executor().carry_out(sessions.to(ada, evil)),
        ):
            with pytest.raises(NotPublished, match="unsigned"):
                attempt()
        Trust(sessions.settings, sessions.database).revoke(line.new, "meanwhile", "root")
        with pytest.raises(NotPublished, match="revoked"):
            sessions.executor().carry_out(line)
        assert line.new == good and sessions.sessions.store.session(ada.name).image == ada.image


@pytest.mark.slow
def test_who_only_goes_on_begins_nothing_and_waits_for_nothing_newer(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        ada = sessions.add(1, sessions.image("old"))
        begun = sessions.image("begun")
        follower = SessionPlanner(sessions.settings, only_begun=True)
        assert not follower.unfinished()
        assert [line.action for line in follower.plan([], "", begin=True)] == [Action.skip]
        SessionPlanner(sessions.settings).begin()
        sessions.image("newer")
        (line,) = follower.plan([], "", begin=True)
        assert follower.unfinished() and (line.session, line.new) == (ada.name, begun)
        assert not follower.superseded(line)
        SessionPlanner(sessions.settings).begin()
        (line,) = follower.plan([], "", begin=True)
        assert line.new not in (begun, ada.image)


@pytest.mark.slow
def test_who_finds_a_run_at_work_lets_rollouts_begin_for_it_unless_it_was_only_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge(), disable_run_logger():
        asked = list[object]()
        monkeypatch.setattr("flows.migrate_sessions.load_settings", lambda: sessions.settings)
        monkeypatch.setattr("flows.migrate_sessions.ask", asked.append)
        sessions.add(1, sessions.image("old"))
        new, standings = sessions.image("new"), Rollouts(sessions.database)
        assert migrate_sessions.fn(only_begun=True) == () and asked == [()]  # nobody is asked any more
        with _alone(sessions.database):
            migrate_sessions.fn(only_begun=True)
            assert standings.all() == {}
            assert [result.state for result in migrate_sessions.fn()] == [State.planned]
            assert list(standings.all()) == [new]


@pytest.mark.parametrize(("way", "left"), [(RolloutStatus.paused, True), (RolloutStatus.aborted, False)], ids=str)
def test_a_rollout_that_is_over_leaves_nothing_to_go_on_with(tmp_path: Path, way: RolloutStatus, left: bool) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        sessions.add(1, sessions.image("old"))
        new = sessions.image("new")
        planning = SessionPlanner(sessions.settings, only_begun=True)
        SessionPlanner(sessions.settings).begin()
        Rollouts(sessions.database).steer(new, way, "root")
        assert planning.unfinished() is left


def moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Mapping[str, tuple[State, bool]], failures: float
) -> tuple[list[str], tuple[Result, ...]]:
    """Which of four sessions a part begins to move, one after the other, and what becomes of them: most fail."""
    begun = list[str]()

    def carry_out(_: MoveExecutor, line: Decision, packages: str) -> Result:
        begun.append(line.session)
        state, damaged = ends.get(line.session, (State.rolled_back, False))
        return Result(line.session, line.old, line.new, packages, None, state, "", damaged=damaged)

    monkeypatch.setattr(MoveExecutor, "carry_out", carry_out)
    with fleet(tmp_path / "home", unavailable={"rollout": 1}) as sessions, sessions.in_charge(), disable_run_logger():
        lines = [Decision(f"s{number}", Action.migrate, IMAGE, IMAGE, wave=1) for number in range(4)]
        return begun, move_wave.fn(1, lines, sessions.settings, FailureBudget(lines, failures))


def test_one_run_follows_a_migration_at_a_time(database: Engine) -> None:
    with _alone(database) as first, _alone(database) as second:
        assert first and not second
    with _alone(database) as third:
        assert third


@pytest.mark.slow
def test_who_waits_hears_at_once_what_anybody_says(database: Engine) -> None:
    clock = _Watch(database)
    clock.wait(now() - timedelta(seconds=1))
    until = now() + timedelta(seconds=PATIENCE)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(clock.wait, until)
        History(database).add(Kind.paused, image=IMAGE)
        waiting.result()
    assert now() < until


def test_what_is_answered_on_a_page_is_heard_while_it_is_waited(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POLL_SECONDS", "HEAR_SECONDS"):
        monkeypatch.setattr(f"flows.migrate_sessions.{name}", 0.01)
    clock = _Watch(
        database, lambda: History(database).add(Kind.noticed, session="ada", image=IMAGE, data={"page": True})
    )
    until = now() + timedelta(seconds=PATIENCE)
    clock.wait(until)
    assert now() < until


@pytest.mark.slow
def test_without_a_word_it_is_waited_to_the_end(database: Engine) -> None:
    clock, until = _Watch(database), now() + timedelta(seconds=0.2)
    clock.wait(until)
    assert now() >= until


def test_whoever_looks_after_sessions_is_told_of_those_that_are_held_and_of_no_others() -> None:
    moved = Result("ada", "old", "new", "", 1.0, State.cleaned, "")
    held = replace(moved, session="bob", state=State.held, reason="the way back failed. `refit migrate recover bob`")
    assert about_held([moved]) == ""
    assert about_held([moved, held]) == f"bob: {held.reason}"


@pytest.mark.slow
def test_a_move_that_has_not_ended_takes_a_seat_in_the_next_plan(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        old = sessions.image("old")
        ada, bob = (sessions.add(number, old) for number in (1, 2))
        for each in (ada, bob):
            PreferenceStore(sessions.database).change(each.name, "root", owner="ann")
        new = sessions.image("new")
        (_, alone) = SessionPlanner(sessions.settings).plan([], "")
        store = sessions.sessions.store
        with store.hold(ada.name) as held:
            sessions.journal.begin(held, ada, replace(ada, image=new, generation=1), "", by="root")
            begun = now()
            moving, waits = SessionPlanner(sessions.settings).plan([], "")
        unfinished, _ = SessionPlanner(sessions.settings).plan([], "")
        assert (moving.session, moving.reason, unfinished.reason) == (ada.name, Reason.moving, Reason.unfinished)
        assert (alone.session, waits.session) == (bob.name, bob.name)
        assert waits.at and waits.at > begun + timedelta(seconds=sessions.settings.migration.move_seconds / 2)


def test_who_has_several_sessions_loses_one_at_a_time(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        old = sessions.image("old")
        names = [sessions.add(number, old).name for number in range(4)]
        for name in names[:2]:
            PreferenceStore(sessions.database).change(name, "root", owner="ann")
        sessions.image("new")
        at = {line.session: line.at for line in SessionPlanner(sessions.settings).plan([], "")}
        assert at[names[0]] != at[names[1]] and at[names[2]] == at[names[3]]


@pytest.mark.slow
@pytest.mark.parametrize(("cap", "most"), [({"owner": 1}, 1), ({"owner": 2}, 2), ({"owner": None, "profile": 1}, 1)])
def test_while_moves_run_no_more_are_away_than_the_caps_let(
    tmp_path: Path, cap: Mapping[str, int | None], most: int
) -> None:
    with fleet(tmp_path / "home", waves=[100], unavailable=cap) as sessions, sessions.in_charge(), disable_run_logger():
        old = sessions.image("old")
        names = [sessions.add(number, old).name for number in range(4)]
        for name in names:
            PreferenceStore(sessions.database).change(name, "root", owner="ann")
        new = sessions.image("new")
        sessions.world.seconds = {"start": 0.1}
        lines = [sessions.to(sessions.sessions.store.session(name), new) for name in names]
        results = move_wave.fn(1, lines, sessions.settings, FailureBudget(lines))
        assert {one.state for one in results} == {State.cleaned}
        assert sessions.world.most_away <= most


@pytest.mark.slow
def test_what_another_run_moves_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.migrations.rollouts.concurrency.LOOK_SECONDS", 0.01)
    with fleet(tmp_path / "home") as sessions, sessions.in_charge(), disable_run_logger():
        old = sessions.image("old")
        ada, bob = (sessions.add(number, old) for number in (1, 2))
        new = sessions.image("new")
        for each in (ada, bob):
            PreferenceStore(sessions.database).change(each.name, "root", owner="ann")
        away = Event()
        sessions.world.meanwhile = lambda point: away.set() if point.verb == "stop" else None
        sessions.world.seconds = {"start": 0.3}

        def run(line: Decision) -> tuple[Result, ...]:
            return move_wave.fn(1, [line], sessions.settings, FailureBudget([line]))

        with ThreadPoolExecutor() as pool:
            first = pool.submit(run, sessions.to(ada, new))
            assert away.wait(PATIENCE)
            second = pool.submit(run, sessions.to(bob, new))
            assert [one.state for one in (*first.result(), *second.result())] == [State.cleaned] * 2
        assert sessions.world.most_away == 1
