"""The process that moves a session in a cluster is killed at random moments, and so is what ends its move.

By itself this kills a few; `REFIT_TEST_KILLS` says how many, `REFIT_TEST_SEED` when. Its tally is printed
with `pytest -s`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.cluster import Lab
from tests.support.cluster_moves import ClusterScene, cluster_scene
from tests.support.random_kills import WRITES, Killer

KILLS = int(os.environ.get("REFIT_TEST_KILLS", "6"))
SEED = os.environ.get("REFIT_TEST_SEED", "1")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800 + 60 * KILLS)]


@pytest.fixture(scope="module", params=[False, True], ids=["cold", "late"])
def scene(
    cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterScene]:
    with cluster_scene(tmp_path_factory.mktemp("lot"), late=request.param, first=WRITES) as scene:
        yield scene


def test_whenever_it_is_killed_the_session_has_its_home_and_nothing_is_left(
    scene: ClusterScene, request: pytest.FixtureRequest
) -> None:
    killer = Killer(scene, f"{SEED} {request.node.callspec.id}")
    while killer.tally.kills < (KILLS + 1) // 2:
        killer.once()
        print(killer.tally.told(), flush=True)
