"""The order of moves, as the caps let."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.results import Result
from flows.migrations.rollouts.concurrency import TOGETHER, AdmissionQueue, ConcurrencyLimits, side_by_side

OWNERS = {"a1": "ann", "a2": "ann", "a3": "ann", "b1": "bob", "b2": "bob", "n1": "", "n2": ""}


def line(name: str) -> Decision:
    return Decision(name, Action.migrate, "old", "new")


def caps(everybody: int = 9, **each: int) -> ConcurrencyLimits:
    return ConcurrencyLimits(everybody, each, lambda name: [("owner", OWNERS[name]), ("profile", "p0")])


def begun(turns: AdmissionQueue, elsewhere: Collection[str] = ()) -> list[str]:
    return [each.session for each in turns.begin(elsewhere)]


def test_who_has_to_wait_for_another_of_its_owner_keeps_nobody_else_from_going() -> None:
    turns = AdmissionQueue(map(line, OWNERS), caps(3, owner=1))
    assert begun(turns) == ["a1", "b1", "n1"] and begun(turns) == []
    turns.end(line("n1"))
    assert begun(turns) == ["n2"]
    turns.end(line("a1"))
    assert begun(turns) == ["a2"] and not turns.over


def test_those_whom_another_run_moves_have_seats_too() -> None:
    turns = AdmissionQueue(map(line, ["a1", "b1", "n1"]), caps(3, owner=1))
    assert begun(turns, {"a2", "n2"}) == ["b1"]
    assert begun(turns, {"b1"}) == ["a1", "n1"] and turns.over


def test_of_many_that_may_begin_some_begin_a_moment_later() -> None:
    names = [f"s{number}" for number in range(TOGETHER + 2)]
    turns = AdmissionQueue(map(line, names), ConcurrencyLimits(600, {}, lambda _: ()))
    assert begun(turns) == names[:TOGETHER] and not turns.over
    assert begun(turns) == names[TOGETHER:] and turns.over


def test_without_a_cap_nobody_waits() -> None:
    assert begun(AdmissionQueue(map(line, OWNERS), caps())) == list(OWNERS)


@pytest.mark.slow
@given(st.permutations(list(OWNERS)), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.data())
def test_all_have_their_turn_once_and_no_cap_is_exceeded(
    names: list[str], everybody: int, owner: int, profile: int, data: st.DataObject
) -> None:
    turns, away, seen = (
        AdmissionQueue(map(line, names), caps(everybody, owner=owner, profile=profile)),
        list[str](),
        list[str](),
    )
    while away or not turns.over:
        new = begun(turns)
        away, seen = away + new, seen + new
        assert 0 < len(away) <= min(everybody, profile)
        assert all(count <= owner for name, count in Counter(map(OWNERS.get, away)).items() if name)
        back = data.draw(st.sampled_from(away))
        away.remove(back)
        turns.end(line(back))
    assert sorted(seen) == sorted(names)


def test_results_come_in_the_order_of_the_moves() -> None:
    def move(which: Decision) -> Result:
        return Result(which.session, "old", "new", "", None, State.cleaned, "")

    results = side_by_side([line(name) for name in OWNERS], move, caps(2, owner=1))
    assert [one.session for one in results] == list(OWNERS)
    assert side_by_side([], move, caps()) == ()


def test_what_is_no_failure_of_a_move_ends_all_and_begins_no_other() -> None:
    tried = list[str]()

    def move(which: Decision) -> Result:
        tried.append(which.session)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        side_by_side([line(name) for name in OWNERS], move, caps(1))
    assert tried == ["a1"]


def test_who_has_no_seat_because_of_others_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.migrations.rollouts.concurrency.LOOK_SECONDS", 0.01)
    away = [{"a2"}, {"a2"}, set[str]()]

    def move(which: Decision) -> Result:
        assert not away
        return Result(which.session, "old", "new", "", None, State.cleaned, "")

    def elsewhere(here: Collection[str]) -> Collection[str]:
        assert not here
        return away.pop(0)

    assert len(side_by_side([line("a1")], move, caps(owner=1), elsewhere)) == 1
