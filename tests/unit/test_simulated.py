"""Simulated engine and homes keep their contracts; hundreds of moves go wrong on them, and nobody loses anything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.faults import upset
from flows.migrations.move_steps import State
from flows.sessions.engine import Engine, Homes
from flows.sessions.history import History
from flows.sessions.model import HomeRef, Session, TokenRef
from tests.support.engine_contract import EngineContract
from tests.support.examples import several
from tests.support.homes_contract import Files, HomesContract
from tests.support.simulated.engine import SimulatedEngine, SimulatedHomes
from tests.support.simulated.files import SimulatedFiles
from tests.support.simulated.fleet import ACCESS, PROFILE, RELEASE, Fleet, fleet
from tests.support.simulated.replicas import check_that_one_acts
from tests.support.simulated.upsets import trial
from tests.support.simulated.world import GOOD, World

IMAGE = f"sha256:{'ab' * 32}"
MOVES, PARTS, SEED = several(200), 4, 20261121


class TestSimulatedEngine(EngineContract):
    """The whole contract."""

    @pytest.fixture
    def engine(self) -> Engine:
        return SimulatedEngine(World(images={IMAGE: GOOD}, homes={"/home": {}, "/": {}}, owed={"/home": {}, "/": {}}))

    @pytest.fixture
    def session(self) -> Session:
        return Session("ada", PROFILE, RELEASE, IMAGE, 200001, HomeRef("/home"), TokenRef("/token"), ACCESS)

    @pytest.fixture
    def another_home(self) -> Path:
        return Path("/")


class TestSimulatedHomes(HomesContract):
    """The whole contract."""

    @pytest.fixture
    def world(self) -> Iterator[World]:
        with (world := World()).person():
            yield world

    @pytest.fixture
    def homes(self, world: World, tmp_path: Path) -> Homes:
        return SimulatedHomes(world, tmp_path / "homes")

    @pytest.fixture
    def files(self, world: World) -> Files:
        return SimulatedFiles(world)

    @pytest.fixture
    def session(self, homes: Homes) -> Session:
        home = homes.make("ada", 200001)
        return Session("ada", PROFILE, RELEASE, IMAGE, 200001, home, TokenRef("/token"), ACCESS)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "home") as simulated:
        yield simulated


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_goes_wrong_no_home_is_damaged_and_nothing_is_left_over(sessions: Fleet, part: int) -> None:
    numbers = range(part, MOVES, PARTS)
    ended = Counter(trial(sessions, number, SEED) for number in numbers)
    assert ended.total() == len(numbers)
    assert {State.cleaned, State.rolled_back} <= ended.keys()
    assert not History(sessions.database).broken()


@pytest.mark.slow
def test_f07_of_two_engines_never_both_act_on_one_session(tmp_path: Path) -> None:
    check_that_one_acts(tmp_path, f"sqlite:///{tmp_path / 'refit.db'}")


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_moves_go_wrong_and_nobody_loses_anything() -> None:
    damage, ended = upset(10_000, os.cpu_count() or 1)
    assert not damage and ended.total() == 10_000
