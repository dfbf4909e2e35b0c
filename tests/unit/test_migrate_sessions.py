"""How a plan is carried out: waves, parts of them, and when nobody else is moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from flows.migrate_sessions import WAVE, _at_once, _in_waves
from flows.migrations.carry import Result
from flows.migrations.move import State
from flows.migrations.rollout import Action, Decision
from flows.policy import RolloutPolicy
from flows.settings import Settings

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
POLICY = RolloutPolicy(waves=(10, 50, 100))


def decision(name: str, wave: int | None, minutes: int = 0) -> Decision:
    at = None if wave is None else NOW + timedelta(minutes=minutes)
    return Decision(name, Action.skip if wave is None else Action.migrate, "old", "new", wave=wave, at=at)


class Machine:
    """Moves sessions as it is told to, and remembers in which parts."""

    def __init__(self, **ends: State) -> None:
        self.ends, self.parts = ends, dict[int, list[str]]()

    def move(self, number: int, part: Sequence[Decision]) -> list[Result]:
        self.parts[number] = [each.session for each in part]
        return [Result(d.session, d.old, d.new, "", None, self._end(d), "") for d in part]

    def _end(self, decision: Decision) -> State:
        moves = decision.action is Action.migrate
        return self.ends.get(decision.session, State.cleaned) if moves else State.skipped


def test_waves_come_one_after_the_other_in_parts_that_are_not_too_large() -> None:
    machine, second = Machine(), [decision(f"s{n:02}", 2, minutes=n) for n in range(WAVE + 1)]
    plan = [*reversed(second), decision("volunteer", 0), decision("first", 1), decision("stays", None)]
    results = _in_waves(plan, machine.move, POLICY)
    assert machine.parts == {
        1: ["stays", "volunteer"],
        2: ["first"],
        3: [each.session for each in second[:WAVE]],
        4: [second[WAVE].session],
    }
    assert sum(result.moved for result in results) == len(plan) - 1


def test_after_a_wave_that_failed_nobody_is_moved_any_more() -> None:
    machine = Machine(b=State.rolled_back)
    plan = [decision("a", 1), decision("b", 1), decision("c", 2), decision("d", 3), decision("e", None)]
    results = {result.session: result for result in _in_waves(plan, machine.move, POLICY)}
    assert machine.parts == {1: ["e"], 2: ["a", "b"]}
    assert results["a"].moved and results["b"].failed
    assert {results[name].state for name in "cde"} == {State.skipped}
    assert results["c"].reason == results["d"].reason == "an earlier wave has to be looked at; 10 %: failed"


def test_an_image_that_failed_stops_no_other() -> None:
    other = replace(decision("d", 2), new="other")
    results = _in_waves([decision("a", 1), decision("c", 2), other], Machine(a=State.rolled_back).move, POLICY)
    assert {result.session: result.moved for result in results} == {"a": False, "c": False, "d": True}


def test_some_may_fail_but_none_may_be_held() -> None:
    plan = [*(decision(f"s{n}", 1) for n in range(40)), decision("next", 2)]
    assert _in_waves(plan, Machine(s1=State.rolled_back).move, POLICY)[-1].moved
    assert not _in_waves(plan, Machine(s1=State.held).move, POLICY)[-1].moved


def test_a_wave_in_which_nobody_was_to_be_moved_stops_nobody() -> None:
    assert _in_waves([decision("a", None), decision("b", 2)], Machine().move, POLICY)[-1].moved


def test_no_more_are_away_at_once_than_the_strictest_cap_lets() -> None:
    assert _at_once(Settings()) == 4
    policy = RolloutPolicy.model_validate({"unavailable": {"host": 2, "rollout": None}})
    assert _at_once(Settings(migration=policy)) == 2
