"""A warm start on another machine: the memory of this one says nothing of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.core.settings import Settings
from flows.migrations.move_steps import State
from flows.migrations.steps.move_context import MoveContext
from tests.support.pods import SESSION
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.faults import move
from tests.support.simulated.fleet import LATE, Fleet
from tests.support.simulated.world import Point

HERE = ["on this machine", "in a cluster"]


@pytest.mark.parametrize(("here", "cold"), [(True, "its image"), (False, "one container has its GPUs")], ids=HERE)
def test_one_that_stays_cold_says_why(here: bool, cold: str, tmp_path: Path) -> None:
    engine, gpus = SimpleNamespace(on_this_machine=here), SimpleNamespace(shareable=here)
    sessions = SimpleNamespace(engine=engine, gpus=gpus)
    context = MoveContext(Settings(home=tmp_path), sessions, SimpleNamespace())  # type: ignore[arg-type]
    assert context.stays_cold(replace(SESSION, gpus=1)).startswith(cold)
    assert context.stays_cold(SESSION).startswith("its image")
    assert context.stays_cold(replace(SESSION, late_home=True)) == ""


@pytest.mark.parametrize("here", [True, False], ids=HERE)
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
