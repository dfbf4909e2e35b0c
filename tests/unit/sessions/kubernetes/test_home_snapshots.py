"""The snapshots of homes in a cluster: which set counts, what they cost, how often a rehearsal has a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from flows.core.database import now
from flows.core.settings.cluster import Snapshots
from flows.sessions.kubernetes import rehearsal_budget
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, Conflict
from flows.sessions.kubernetes.home_snapshots import RESTORED, TAKEN, ClusterSnapshots
from flows.sessions.kubernetes.snapshot_ways import Copies, VolumeSnapshots, claim_of, make_claim
from tests.support.pods import OPTIONS, SESSION


def test_where_there_are_none_the_plan_says_what_is_not_undone() -> None:
    assert "isn't undone" in ClusterSnapshots(Cluster(OPTIONS)).price({})


@pytest.mark.parametrize(
    ("way", "how"), [(Copies, "a Pod beside the session copies"), (VolumeSnapshots, "the storage class")]
)
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


def test_a_copy_that_is_slow_is_made_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cast("Cluster", OneClaim())
    begun = now()
    for hours, copied in ((0, True), (1, False), (23, False), (25, True), (26, False)):
        monkeypatch.setattr(rehearsal_budget, "now", lambda hours=hours: begun + timedelta(hours=hours))
        assert rehearsal_budget.take(cluster, SESSION, quick=False) is copied
    assert all(rehearsal_budget.take(cluster, SESSION, quick=True) for _ in range(2))


def test_a_set_of_snapshots_that_was_taken_in_part_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(turn: int, part: str, *, cut: bool = True) -> dict[str, Any]:
        labels = {"io.refit.turn": str(turn), "io.refit.part": part}
        status = {"status": {"creationTime": "2026-11-26T06:00:00Z"}} if cut else {}
        return {"metadata": {"name": f"{part or 'home'}-{turn}", "labels": labels}, **status}

    way = VolumeSnapshots(Cluster(OPTIONS), "class")
    there: list[dict[str, Any]] = []
    monkeypatch.setattr(way, "_of", lambda session, id: there)
    assert way.newest("ada", "move") == {} and not way.has("ada", "move")
    there += [told(1, ""), told(1, "data"), told(2, "")]
    assert way.newest("ada", "move") == {"": "home-1", "data": "data-1"} and way.has("ada", "move", ["data"])
    there += [told(2, "data", cut=False)]
    assert way.newest("ada", "move") == {"": "home-1", "data": "data-1"}
    there[-1] = told(2, "data")
    assert way.newest("ada", "move") == {"": "home-2", "data": "data-2"}
    assert not way.has("ada", "move", ["data", "models"])


class Claims:
    """A cluster with claims alone; those in `busy` go only when their Pods end."""

    options = replace(OPTIONS, snapshots=Snapshots.auto)

    def __init__(self) -> None:
        self.there: dict[str, dict[str, str]] = {}
        self.busy: set[str] = set()
        self.asked_to_go: list[str] = []

    def create(self, resource: str, manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        if name in self.there:
            raise Conflict(f"{name} is there.")
        self.there[name] = manifest["metadata"]["labels"]

    def find(self, resource: str, name: str) -> dict[str, Any] | None:
        return {"metadata": {"name": name, "labels": self.there[name]}} if name in self.there else None

    def list(self, resource: str, **labels: str) -> list[dict[str, Any]]:
        if resource == "pods":
            return []
        return [
            {"metadata": {"name": name, "labels": own}}
            for name, own in self.there.items()
            if labels.items() <= own.items()
        ]

    def delete(self, resource: str, name: str) -> None:
        self.asked_to_go.append(name)
        if name not in self.busy:
            del self.there[name]

    def wait(self, resource: str, name: str, until: Callable[[object], bool], seconds: float, told: str) -> None:
        if not until(self.find(resource, name)):
            raise ClusterError(told)


def test_copies_without_a_name_go_with_the_next_and_keep_no_other_from_going() -> None:
    claims, kind = Claims(), {"io.refit.kind": "spare"}
    claims.there = {
        "refit-spare-ada-0": {**kind},
        "refit-spare-bob-0": {**kind},
        "refit-spare-1f-0": {**kind, "io.refit.spare": "1f"},
        "refit-spare-2e-0": {**kind, "io.refit.spare": "2e"},
        "refit-copy-1": {"io.refit.kind": "copy"},
    }
    claims.busy = {"refit-spare-bob-0"}
    snapshots = ClusterSnapshots(cast("Cluster", claims))
    snapshots.__dict__["way"] = Copies.__new__(Copies)
    assert snapshots.forget_spare("1f")
    assert {*claims.there} == {"refit-spare-bob-0", "refit-spare-2e-0", "refit-copy-1"}
    assert "refit-spare-bob-0" in claims.asked_to_go
    with pytest.raises(ClusterError, match="refit-spare-bob-0 doesn't go"):
        snapshots.forget_spare("bob")  # its name is wanted


def test_a_claim_with_other_labels_is_not_taken_for_ones_own() -> None:
    claims = Claims()
    cluster = cast("Cluster", claims)
    wanted = claim_of("refit-spare-ada-0", SESSION, "spare", {"io.refit.spare": "ada"}, cluster)
    make_claim(cluster, wanted)
    claims.there["refit-spare-ada-0"]["of somebody else"] = "too"
    make_claim(cluster, wanted)
    claims.there["refit-spare-ada-0"] = {"io.refit.kind": "spare"}
    with pytest.raises(ClusterError, match="made for something else"):
        make_claim(cluster, wanted)
