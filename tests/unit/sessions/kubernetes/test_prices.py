"""The words for what a home's snapshots cost in a cluster, and how often a rehearsal has a copy of the home."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from flows.core.database import now
from flows.core.settings.cluster import Snapshots
from flows.sessions.engine import Homes
from flows.sessions.kubernetes import rehearsal_budget
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.home_snapshots import RESTORED, TAKEN, ClusterSnapshots
from flows.sessions.kubernetes.snapshot_ways import Copies, VolumeSnapshots
from tests.support.pods import OPTIONS, SESSION


def test_where_there_are_none_the_plan_says_what_is_not_undone() -> None:
    assert "isn't undone" in ClusterSnapshots(Cluster(OPTIONS)).price({})


@pytest.mark.parametrize(("way", "how"), [(Copies, "a Pod beside it copies"), (VolumeSnapshots, "the storage class")])
def test_costs_are_those_of_the_last_time(way: type, how: str) -> None:
    snapshots = ClusterSnapshots(Cluster(replace(OPTIONS, snapshots=Snapshots.auto)))
    snapshots.__dict__["way"] = way.__new__(way)
    assert how in snapshots.price({}) and "is measured by the first move" in snapshots.price({})
    assert "the last one took 2.3 s" in snapshots.price({TAKEN: "2.3"})
    assert "the way back of the home took 4.1 s" in snapshots.price({TAKEN: "2.3", RESTORED: "4.1"})


class OneClaim:
    """A cluster with one claim."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}

    def find(self, resource: str, name: str) -> dict[str, Any]:
        return {"metadata": {"annotations": self.annotations}}

    def patch(self, resource: str, name: str, change: dict[str, Any], kind: str) -> None:
        self.annotations |= change["metadata"]["annotations"]


class CostlyHomes:
    """Homes whose copies take that many bytes."""

    def __init__(self, cost: int) -> None:
        self.cost = cost

    def snapshot_cost(self, session: object) -> int:
        return self.cost


def test_a_copy_that_is_slow_is_made_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, homes = cast("Cluster", OneClaim()), cast("Homes", CostlyHomes(1))
    begun = now()
    for hours, copied in ((0, True), (1, False), (23, False), (25, True), (26, False)):
        monkeypatch.setattr(rehearsal_budget, "now", lambda hours=hours: begun + timedelta(hours=hours))
        assert rehearsal_budget.take(cluster, homes, SESSION) is copied
    assert rehearsal_budget.take(cluster, cast("Homes", CostlyHomes(0)), SESSION)
