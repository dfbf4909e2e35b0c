"""Sessions that have lost their machines: which of them are started again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.migrations import lost_sessions
from flows.migrations.drains import MachineDrains
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from tests.support.simulated.fleet import fleet
from tests.support.waiting import PATIENCE


class Machines:
    """Two sessions that ought to run and have lost their Pods."""

    def __init__(self, settings: Settings) -> None:
        self.database, self.engine, self.machines = open_database(settings.database), self, self
        self.at_once = 2
        self.states: dict[str, State] = {}
        self.sessions = self.journal = self

    def lost(self) -> frozenset[str]:
        return frozenset(("ada", "bob"))

    def idle_gpus(self) -> frozenset[str]:
        return frozenset()

    def all(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(session=SimpleNamespace(name=name), should_run=True) for name in ("ada", "bob")]

    def last(self, session: str) -> SimpleNamespace | None:
        return SimpleNamespace(state=self.states[session]) if session in self.states else None


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    machines = Machines(Settings(home=tmp_path))
    monkeypatch.setattr(MoveExecutor, "open", lambda _: machines)
    return machines


def without_drains(home: Path) -> Settings:
    return Settings.model_validate({"home": home, "kubernetes": {"drain_minutes": 0}})


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

    monkeypatch.setattr(lost_sessions, "bring", bring)
    machines.states["ada"] = state
    asked = MachineDrains(without_drains(tmp_path))
    asked.run_once()
    asked.lost.wait()
    assert sorted(begun) == started


def test_one_that_does_not_come_up_holds_up_nobody_and_is_tried_less_and_less_often(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []
    kubelet_begins, bob_is_back = Event(), Event()

    def bring(_: Settings, __: object, names: Sequence[str]) -> Mapping[str, str]:
        begun.extend(names)
        if names == ["bob"]:
            bob_is_back.set()
        elif not kubelet_begins.wait(PATIENCE):
            raise AssertionError("nobody lets it go on")
        elif begun.count("ada") == 1:
            raise RefitError("The database is locked.")
        return {"ada": "it ends again and again"} if names == ["ada"] else {"bob": ""}

    monkeypatch.setattr(lost_sessions, "bring", bring)
    monkeypatch.setattr(lost_sessions, "_REST_SECONDS", 0.0)
    asked = MachineDrains(without_drains(tmp_path))
    asked.run_once()  # comes back while the one still waits
    assert bob_is_back.wait(PATIENCE)
    asked.run_once()
    assert begun.count("ada") == 1, "it is tried once at a time"
    kubelet_begins.set()
    asked.lost.wait()
    assert "ada has lost its machine, and is not back: The database is locked" in caplog.text
    asked.run_once()
    asked.lost.wait()
    assert begun.count("ada") == 2 and "ada has lost its machine, and is not back: it ends again" in caplog.text
    monkeypatch.setattr(lost_sessions, "_REST_SECONDS", 60.0)
    asked.run_once()
    asked.lost.wait()
    asked.run_once()
    asked.lost.wait()
    assert begun.count("ada") == 3, "it rests"


def test_a_mistake_of_refits_is_logged_and_the_session_rests(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []

    def bring(_: Settings, __: object, names: Sequence[str]) -> Mapping[str, str]:
        begun.extend(names)
        raise ZeroDivisionError

    monkeypatch.setattr(lost_sessions, "bring", bring)
    drains = MachineDrains(without_drains(tmp_path))
    for _ in range(2):
        drains.run_once()
        drains.lost.wait()
    assert sorted(begun) == ["ada", "bob"]
    assert "the start of ada ended by a mistake of Refit's" in caplog.text and "ZeroDivisionError" in caplog.text


def test_each_failure_doubles_the_rest_up_to_an_hour() -> None:
    rests = [lost_sessions.rest(failures).total_seconds() for failures in (0, 1, 2, 3, 6, 7, 10**6)]
    assert rests == [60, 60, 120, 240, 1920, 3600, 3600]


def test_gpus_of_a_session_whose_stop_was_killed_go_to_others_and_no_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[str, Sequence[str]]] = []
    with fleet(tmp_path) as simulated:
        image, sessions, executor = simulated.image("one"), simulated.sessions, simulated.executor()
        for number in range(3):
            made = replace(simulated.add(number, image), gpus=1, devices=("example.com/gpu",))
            sessions.store.update(made)
        sessions.store.want("s0", False)  # killed after that, or after the session had ended
        sessions.store.want("s2", False)
        gone = frozenset(("s0", "s1", "s2", "unknown"))
        executor.sessions.machines = SimpleNamespace(lost=frozenset, idle_gpus=lambda: gone)  # type: ignore[assignment]
        executor.sessions.gpus = SimpleNamespace(keep=lambda *given: kept.append(given))  # type: ignore[assignment]
        monkeypatch.setattr(MoveExecutor, "open", lambda _: executor)
        drains = MachineDrains(without_drains(tmp_path))
        with sessions.alone("s2"):
            drains.run_once()
        assert kept == [("s0", ())], "s1 starts again, and somebody acts on s2"
        drains.run_once()
        assert kept[1:] == [("s0", ()), ("s2", ())]
