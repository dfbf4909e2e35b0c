"""Which sessions a plan looks at, in the simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flows.compatibility.obstacles import Scans
from flows.core.settings import Settings
from flows.core.settings.policy import Mode
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision, Lack, Reason
from flows.migrations.rollouts import observer
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.sessions.model import Session
from flows.sessions.wishes import PreferenceStore
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.fleet import Fleet, fleet


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions that were looked at, in a list that grows."""
    names, look_at = list[str](), observer.look_at

    def looking(settings: object, engine: object, sessions: Sequence[Session]) -> object:
        names.extend(session.name for session in sessions)
        return look_at(settings, engine, sessions)  # type: ignore[arg-type]

    monkeypatch.setattr(observer, "look_at", looking)
    return names


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Fleet]:
    """Sessions of which a third are in the first wave, after which a person is asked."""
    with fleet(tmp_path / "home", waves=[30, 100], approval=True) as sessions, sessions.in_charge():
        old = sessions.image("old")
        for number in range(12):
            sessions.add(number, old)
        sessions.image("new")
        yield sessions


def planned(sessions: Fleet) -> tuple[Decision, ...]:
    """The lines of a process that has just begun."""
    return SessionPlanner(sessions.settings).plan([], "", begin=True)


def in_wave(lines: Sequence[Decision], wave: int) -> dict[str, Decision]:
    """The lines of a wave, by session."""
    return {line.session: line for line in lines if line.wave == wave}


def test_sessions_of_a_wave_that_a_person_has_to_open_are_not_looked_at(sessions: Fleet, looked: list[str]) -> None:
    lines = planned(sessions)
    first, second = in_wave(lines, 1), in_wave(lines, 2)
    assert first and second and sorted(looked) == sorted([*first, *second])
    for line in first.values():
        assert sessions.executor().carry_out(line).state is State.cleaned
    looked.clear()
    lines = planned(sessions)
    assert {(line.action, line.reason) for line in in_wave(lines, 2).values()} == {(Action.wait, Reason.gate)}
    assert looked == []


def test_a_wave_that_goes_on_is_looked_at_before_the_next_one_counts_as_closed(
    sessions: Fleet, looked: list[str]
) -> None:
    first, second = (in_wave(planned(sessions), wave) for wave in (1, 2))
    mover, *others = first
    assert others, "the first wave needs two sessions"
    assert sessions.executor().carry_out(first[mover]).state is State.cleaned
    looked.clear()
    lines = in_wave(planned(sessions), 1)
    assert {lines[name].action for name in others} == {Action.migrate}
    assert {*looked} == {*others, *second}


@pytest.fixture
def scanning(sessions: Fleet) -> Settings:
    """The settings of a Refit that scans homes."""
    policy = sessions.settings.migration.model_copy(update={"scan": True})
    return sessions.settings.model_copy(update={"migration": policy})


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions whose homes plans ask to be scanned; nothing is found in any."""
    names = list[str]()

    def obstacles(_settings: object, engine: object, moving: Mapping[str, object], _at_once: int, **_: object) -> Scans:
        names.extend(moving)
        return Scans()

    monkeypatch.setattr(observer, "obstacles", obstacles)
    return names


def test_a_plan_says_by_a_code_which_homes_were_not_scanned_and_why(
    sessions: Fleet, scanning: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Scans(unread={"s1": "its image has no python3"})
    monkeypatch.setattr(observer, "obstacles", lambda *_, **__: told)
    monkeypatch.setattr(SimulatedEngine, "on_this_machine", False)
    with sessions.world.person():
        sessions.sessions.stop("s2")
    planner = SessionPlanner(scanning)
    lines = {line.session: planner.with_lacks(line) for line in planner.plan([], "", begin=True)}
    assert {name: line.unscanned for name, line in lines.items() if line.lacks == (Lack.no_scan,)} == {
        "s1": "its image has no python3",
        "s2": "it doesn't run",
    }
    assert all(not line.unscanned for line in lines.values() if not line.lacks)
    stays = Decision("s1", Action.skip, "sha256:old", "sha256:old", Reason.current)
    assert planner.with_lacks(stays) == stays


def test_where_nobody_wants_scans_a_plan_says_nothing_of_them(sessions: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedEngine, "on_this_machine", False)
    with sessions.world.person():
        sessions.sessions.stop("s2")
    planner = SessionPlanner(sessions.settings)
    assert not any(planner.with_lacks(line).lacks for line in planner.plan([], "", begin=True))


@pytest.mark.parametrize("here", [True, False])
def test_sessions_that_run_are_scanned_wherever_homes_are_read(
    sessions: Fleet, scanning: Settings, scanned: list[str], monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    monkeypatch.setattr(SimulatedEngine, "on_this_machine", here)
    with sessions.world.person():
        sessions.sessions.stop("s2")
    SessionPlanner(scanning).plan([], "", begin=True)
    assert {*scanned} == {f"s{number}" for number in range(12)} - {"s2"}


@pytest.mark.parametrize("here", [True, False])
def test_a_session_that_is_started_is_scanned_only_where_its_home_can_be_read_while_it_is_stopped(
    sessions: Fleet, scanning: Settings, scanned: list[str], monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    monkeypatch.setattr(SimulatedEngine, "on_this_machine", here)
    with sessions.world.person():
        sessions.sessions.stop("s2")
    PreferenceStore(sessions.sessions.store.database).change("s2", "ada", mode=Mode.next_start)
    planner = SessionPlanner(scanning)
    planner.plan([], "", begin=True)
    scanned.clear()
    assert planner.at_start("s2") is not None
    assert scanned == (["s2"] if here else [])


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each home is read, in the place of reading it, where homes are read beside their sessions."""
    times = Counter[str]()

    def obstacles(
        _settings: object,
        _engine: object,
        moving: Mapping[str, object],
        _at_once: int,
        *,
        seconds: float,
        spared: Mapping[str, str],
    ) -> Scans:
        read = moving.keys() - spared.keys() if seconds else set[str]()
        times.update(read)
        return Scans(unread={name: spared.get(name, "not reached") for name in moving.keys() - read})

    monkeypatch.setattr(observer, "obstacles", obstacles)
    monkeypatch.setattr(SimulatedEngine, "on_this_machine", False)
    return times


def test_a_plan_reads_each_home_once_also_where_it_asks_first_which_waves_are_closed(
    sessions: Fleet, scanning: Settings, scans: Counter[str]
) -> None:
    first, second = (in_wave(planned(sessions), wave) for wave in (1, 2))
    mover, *others = first
    assert sessions.executor().carry_out(first[mover]).state is State.cleaned
    planner = SessionPlanner(scanning)
    for plans in (1, 2):
        planner.plan([], "", begin=True)
        assert scans == dict.fromkeys([*others, *second], plans)


def test_a_plan_reads_no_home_of_a_wave_that_a_person_has_to_open(
    sessions: Fleet, scanning: Settings, scans: Counter[str]
) -> None:
    for line in in_wave(planned(sessions), 1).values():
        assert sessions.executor().carry_out(line).state is State.cleaned
    planner = SessionPlanner(scanning)
    lines = planner.plan([], "", begin=True)
    assert not scans
    assert {planner.with_lacks(line).unscanned for line in in_wave(lines, 2).values()} == {"its wave isn't open"}


def test_a_plan_reads_no_home_of_a_session_into_which_nobody_could_look(
    sessions: Fleet, scanning: Settings, scans: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at = observer.look_at

    def looking(settings: object, engine: object, chosen: Sequence[Session]) -> object:
        seen = look_at(settings, engine, chosen)  # type: ignore[arg-type]
        return tuple(replace(each, failed=each.session == "s3") for each in seen)

    monkeypatch.setattr(observer, "look_at", looking)
    planner = SessionPlanner(scanning)
    lines = {line.session: planner.with_lacks(line) for line in planner.plan([], "", begin=True)}
    assert scans == dict.fromkeys(lines.keys() - {"s3"}, 1)
    assert lines["s3"].unscanned == "nobody could look into it"


def test_a_status_reads_no_home_where_that_would_make_pods(
    sessions: Fleet, scanning: Settings, scans: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SessionPlanner(scanning).fleet().sessions and not scans
    monkeypatch.setattr(SimulatedEngine, "on_this_machine", True)
    assert SessionPlanner(scanning).fleet().sessions and len(scans) == 12
