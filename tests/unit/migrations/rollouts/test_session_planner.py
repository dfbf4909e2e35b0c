"""Which sessions a plan looks at, in the simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision, Lack, Reason
from flows.migrations.rollouts import observer, session_planner
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.sessions.model import Session
from tests.support.simulated.engine import SimulatedHomes
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


@pytest.mark.parametrize(
    ("scans", "readable", "lacks"), [(True, True, ()), (False, False, ()), (True, False, (Lack.no_scan,))]
)
def test_a_plan_says_by_a_code_that_homes_cant_be_scanned(
    sessions: Fleet, monkeypatch: pytest.MonkeyPatch, scans: bool, readable: bool, lacks: tuple[Lack, ...]
) -> None:
    monkeypatch.setattr(SimulatedHomes, "readable", readable)
    policy = sessions.settings.migration.model_copy(update={"scan": scans})
    settings = sessions.settings.model_copy(update={"migration": policy})
    stays = Decision("stays", Action.skip, "sha256:old", "sha256:old", Reason.current)
    *moving, last = session_planner._in_cluster([*planned(sessions), stays], settings)
    assert {line.lacks for line in moving} == {lacks} and last.lacks == ()


def test_no_home_is_scanned_where_none_can_be(sessions: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    def obstacles(*given: object) -> dict[str, str]:
        asked.append(given)
        return {}

    monkeypatch.setattr(observer, "obstacles", obstacles)
    policy = sessions.settings.migration.model_copy(update={"scan": True})
    settings = sessions.settings.model_copy(update={"migration": policy})
    for readable in (False, True):
        monkeypatch.setattr(SimulatedHomes, "readable", readable)
        SessionPlanner(settings).plan([], "", begin=True)
        assert bool(asked) is readable
