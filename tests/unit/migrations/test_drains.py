"""Sessions that have lost their machines: which of them are started again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.migrations import drains
from flows.migrations.drains import MachineDrains
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State


class Machines:
    """Two sessions that ought to run and have lost their Pods."""

    def __init__(self, settings: Settings) -> None:
        self.database, self.engine, self.machines = open_database(settings.database), self, self
        self.at_once = 2
        self.states: dict[str, State] = {}
        self.sessions = self.journal = self

    def lost(self) -> frozenset[str]:
        return frozenset(("ada", "bob"))

    def all(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(session=SimpleNamespace(name=name), should_run=True) for name in ("ada", "bob")]

    def last(self, session: str) -> SimpleNamespace | None:
        return SimpleNamespace(state=self.states[session]) if session in self.states else None


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    machines = Machines(Settings(home=tmp_path))
    monkeypatch.setattr(MoveExecutor, "open", lambda _: machines)
    return machines


@pytest.mark.parametrize(
    ("state", "started"),
    [(State.held, ["bob"]), (State.rolled_back, ["ada", "bob"]), (State.stopped, ["ada", "bob"])],
)
def test_a_session_whose_move_could_not_go_back_is_left_to_a_person(
    state: State, started: Sequence[str], machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def bring(_: Settings, __: object, names: Sequence[str]) -> Mapping[str, str]:
        begun.extend(names)
        return dict.fromkeys(names, "")

    monkeypatch.setattr(drains, "bring", bring)
    machines.states["ada"] = state
    without_drains = Settings.model_validate({"home": tmp_path, "kubernetes": {"drain_minutes": 0}})
    MachineDrains(without_drains).run_once()
    assert begun == started
