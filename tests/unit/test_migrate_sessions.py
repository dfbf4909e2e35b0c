"""What the flow of a migration decides by itself, and how it waits."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger
from sqlalchemy import Engine

from flows.database import now, open_database
from flows.errors import RefitError
from flows.migrate_sessions import _alone, _at_once, _Watch, about_held, move_wave
from flows.migrations.carry import Carrier, Result
from flows.migrations.follow import Doubts
from flows.migrations.history import History, Kind
from flows.migrations.move import State
from flows.migrations.planning.rollout import Action, Decision, Reason, Way
from flows.migrations.telling.standing import Standings
from flows.plan_migration import Planning, steer, told
from flows.sessions.wishes import Wishes
from flows.settings import Settings
from tests.simulated.fleet import fleet

IMAGE = f"sha256:{'ab' * 32}"


@pytest.fixture
def database(settings: Settings) -> Engine:
    return open_database(settings.database)


def test_no_more_are_away_at_once_than_the_strictest_cap_lets() -> None:
    assert _at_once(Settings(), 4) == 4
    tight = Settings.model_validate({"migration": {"unavailable": {"host": 8, "profile": 2}}})
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


def test_what_is_published_while_sessions_are_moved_is_taken_instead(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        ada = sessions.add(1, sessions.image("old"))
        first = sessions.image("first")
        planning = Planning(sessions.settings)
        (line,) = planning.plan([], "")
        doubts = Doubts([line], superseded=planning.superseded)
        assert (line.session, line.new, doubts.about(line)) == (ada.name, first, "")
        sessions.image("second")
        again = Planning(sessions.settings)
        again.plan([], "")
        assert Doubts([line], superseded=again.superseded).about(line) == Reason.superseded


def test_without_a_registry_nothing_is_said_to_be_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise RefitError("The registry doesn't answer.")

    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        sessions.add(1, sessions.image("old"))
        sessions.image("new")
        planning = Planning(sessions.settings)
        (line,) = planning.plan([], "")
        monkeypatch.setattr("flows.plan_migration.current", away)
        assert not planning.superseded(line)


def moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Mapping[str, tuple[State, bool]], failures: float
) -> tuple[list[str], tuple[Result, ...]]:
    """Which of four sessions a part begins to move, one after the other, and what becomes of them: most fail."""
    begun = list[str]()

    def carry_out(_: Carrier, line: Decision, packages: str) -> Result:
        begun.append(line.session)
        state, damaged = ends.get(line.session, (State.rolled_back, False))
        return Result(line.session, line.old, line.new, packages, None, state, "", damaged=damaged)

    monkeypatch.setattr(Carrier, "carry_out", carry_out)
    with fleet(tmp_path / "home", unavailable={"rollout": 1}) as sessions, sessions.in_charge(), disable_run_logger():
        lines = [Decision(f"s{number}", Action.migrate, IMAGE, IMAGE, wave=1) for number in range(4)]
        return begun, move_wave.fn(1, lines, sessions.settings, Doubts(lines, failures))


def test_one_run_follows_a_migration_at_a_time(database: Engine) -> None:
    with _alone(database) as first, _alone(database) as second:
        assert first and not second
    with _alone(database) as third:
        assert third


def test_who_waits_hears_at_once_what_anybody_says(database: Engine) -> None:
    clock = _Watch(database)
    clock.wait(now() - timedelta(seconds=1))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(clock.wait, now() + timedelta(hours=1))
        History(database).add(Kind.paused, image=IMAGE)
        waiting.result(timeout=60)


def test_what_is_answered_on_a_page_is_heard_while_it_is_waited(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POLL_SECONDS", "HEAR_SECONDS"):
        monkeypatch.setattr(f"flows.migrate_sessions.{name}", 0.01)
    clock = _Watch(database, lambda: History(database).add(Kind.noticed, session="ada", image=IMAGE))
    clock.wait(now() + timedelta(hours=1))


@pytest.mark.parametrize(
    ("what", "way"), [("pause", Way.paused), ("resume", Way.running), ("abort", Way.aborted)], ids=lambda value: value
)
def test_a_rollout_is_steered_by_its_digest(settings: Settings, database: Engine, what: str, way: Way) -> None:
    Standings(database).begin({("p0", "2026a"): IMAGE}, {}, "root")
    assert steer(what, IMAGE[7:19], settings, "ann") == f"The rollout of {IMAGE[7:19]} is {way}."
    assert Standings(database).all()[IMAGE].way is way


def test_who_was_told_of_an_image_that_is_aborted_hears_so_and_has_no_deadline_any_more(tmp_path: Path) -> None:
    with fleet(tmp_path / "home") as sessions, sessions.in_charge():
        ada, new = sessions.add(1, sessions.image("old")), sessions.image("new")
        Standings(sessions.database).begin({(ada.profile, ada.release): new}, {}, "root")
        history = History(sessions.database)
        history.add(Kind.noticed, session=ada.name, image=new, what=f"from {ada.image}; shown at pts/0")
        assert told(sessions.database)
        steer("abort", new, sessions.settings, "ann")
        assert not told(sessions.database)
        assert [event.kind for event in history.events(ada.name)] == [Kind.noticed, Kind.withdrawn]
        history.add(Kind.noticed, session=ada.name, image=new, what=f"from {ada.image}; shown at pts/0")
        assert list(told(sessions.database)) == [(ada.name, ada.image)] and not history.broken()


def test_what_waits_for_no_approval_gets_none(settings: Settings, database: Engine) -> None:
    Standings(database).begin({("p0", "2026a"): IMAGE}, {}, "root")
    with pytest.raises(RefitError, match="doesn't wait for an approval"):
        steer("approve", "", settings, "ann")


def test_without_a_word_it_is_waited_to_the_end(database: Engine) -> None:
    clock, until = _Watch(database), now() + timedelta(seconds=0.2)
    clock.wait(until)
    assert now() >= until


def test_whoever_looks_after_sessions_is_told_of_those_that_are_held_and_of_no_others() -> None:
    moved = Result("ada", "old", "new", "", 1.0, State.cleaned, "")
    held = replace(moved, session="bob", state=State.held, reason="the way back failed. `refit migrate resume bob`")
    assert about_held([moved]) == ""
    assert about_held([moved, held]) == f"bob: {held.reason}"


def test_who_has_several_sessions_loses_one_at_a_time(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        old = sessions.image("old")
        names = [sessions.add(number, old).name for number in range(4)]
        for name in names[:2]:
            Wishes(sessions.database).change(name, "root", owner="ann")
        sessions.image("new")
        at = {line.session: line.at for line in Planning(sessions.settings).plan([], "")}
        assert at[names[0]] != at[names[1]] and at[names[2]] == at[names[3]]
