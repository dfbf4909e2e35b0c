"""A warm start on another machine: the memory of this one says nothing of it."""

from __future__ import annotations

import pytest

from flows.migrations.move_steps import State
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.faults import move
from tests.support.simulated.fleet import LATE, Fleet
from tests.support.simulated.world import Point


@pytest.mark.parametrize("here", [True, False], ids=["on this machine", "in a cluster"])
def test_a_move_reads_the_containers_of_all_sessions_only_where_their_number_matters(
    sessions: Fleet, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedEngine, "on_this_machine", here)
    monkeypatch.setattr("flows.migrations.steps.move_context.room_obstacle", lambda *_: "")
    bob, asked = sessions.add(2, sessions.image("old"), LATE), set[str]()

    def meanwhile(point: Point) -> None:
        if point.verb == "containers":
            asked.add(point.session)

    sessions.world.meanwhile = meanwhile
    assert move(sessions, bob).state is State.cleaned
    assert sessions.world.effects["warm"] and bob.name in asked
    assert ("" in asked) == here
