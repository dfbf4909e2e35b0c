"""The process that moves a session in a cluster is killed at random moments, and so is what ends its move.

By itself this kills a few; `REFIT_TEST_KILLS` says how many, `REFIT_TEST_SEED` when. Its tally is printed
with `pytest -s`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest

from flows.core.settings.cluster import ClusterSettings, Snapshots
from tests.support.cluster import NAMESPACE, Lab
from tests.support.cluster_moves import ClusterScene, cluster_scene
from tests.support.random_kills import WRITES, Killer

KILLS = int(os.environ.get("REFIT_TEST_KILLS", "6"))
SEED = os.environ.get("REFIT_TEST_SEED", "1")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800 + 60 * KILLS)]


KINDS = ["cold", "late", "with snapshots"]


@pytest.fixture(scope="module", params=KINDS)
def scene(
    cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterScene]:
    snapshots = Snapshots.auto if request.param == "with snapshots" else Snapshots.none
    kubernetes = ClusterSettings(namespace=NAMESPACE, home_gb=1, snapshots=snapshots)
    folder, late = tmp_path_factory.mktemp("lot"), request.param != "cold"
    with cluster_scene(folder, late=late, first=WRITES, kubernetes=kubernetes) as scene:
        yield scene


def test_whenever_it_is_killed_the_session_has_its_home_and_nothing_is_left(
    scene: ClusterScene, request: pytest.FixtureRequest
) -> None:
    killer = Killer(scene, f"{SEED} {request.node.callspec.id}")
    while killer.tally.kills < math.ceil(KILLS / len(KINDS)):
        killer.once()
        print(killer.tally.told(), flush=True)
