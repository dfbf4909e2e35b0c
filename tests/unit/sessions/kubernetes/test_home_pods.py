"""Pods for homes: which of them stay, for whom, and when they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest

from flows.core import fence
from flows.core.errors import RefitError
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.home_pods import HomePods
from flows.sessions.kubernetes.manifests import KIND
from flows.sessions.kubernetes.snapshot_ways import kept, live
from tests.support.pods import OPTIONS, SESSION

CLAIMS = {"": "refit-copy-1"}
READS = [*live(SESSION, read_only=True), *kept(SESSION, CLAIMS)]
WRITES = [*live(SESSION, read_only=False), *kept(SESSION, CLAIMS)]
ALL = [*READS, *live(SESSION, read_only=False), *kept(SESSION, CLAIMS, read_only=False)]


class Pods:
    """A cluster with Pods that run as soon as they are made; `ended` are those that went, and with how much grace."""

    options = OPTIONS

    def __init__(self) -> None:
        self.there: dict[str, dict[str, Any]] = {}
        self.ended: list[tuple[str, float]] = []
        self.node = "n1"

    def create(self, resource: str, manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        assert name not in self.there
        self.there[name] = {**manifest, "status": {"phase": "Running"}}

    def find(self, resource: str, name: str) -> dict[str, Any] | None:
        return self.there.get(name)

    def delete(self, resource: str, name: str, grace: float) -> None:
        fence.check()
        self.ended.append((name, grace))
        del self.there[name]

    def wait(self, resource: str, name: str, until: Callable[[object], bool], seconds: float, told: str) -> None:
        assert until(self.there.get(name))

    def list(self, resource: str, **labels: str) -> list[dict[str, Any]]:
        if labels[KIND] != "session":
            return [*self.there.values()]
        metadata = {"name": "refit-ada-1", "labels": labels, "resourceVersion": "1"}
        return [{"metadata": metadata, "spec": {"nodeName": self.node, "containers": [], "volumes": []}}]


@pytest.fixture
def cluster() -> Pods:
    return Pods()


@pytest.fixture
def pods(cluster: Pods) -> HomePods:
    return HomePods(cast("Cluster", cluster))


@contextmanager
def holding(number: int) -> Iterator[None]:
    with fence.needing(lambda: None, number=number):
        yield


def test_one_that_was_prepared_does_all_until_it_is_released(pods: HomePods, cluster: Pods) -> None:
    with holding(7):
        pods.prepare(SESSION, ALL)
        (name,) = cluster.there
        for mounts in (READS, WRITES):
            with pods.mounted(SESSION, mounts):
                assert [*cluster.there] == [name]
        assert cluster.ended == []
        pods.release(SESSION.name)
    assert cluster.ended == [(name, 0)]


def test_one_that_lacks_a_claim_is_not_used(pods: HomePods, cluster: Pods) -> None:
    with holding(7):
        pods.prepare(SESSION, READS)
        (name,) = cluster.there
        with pods.mounted(SESSION, WRITES):
            assert name not in cluster.there
    assert cluster.there == {}


def test_a_later_holder_of_the_lease_ends_it_before_anything_else(pods: HomePods, cluster: Pods) -> None:
    with holding(7):
        pods.prepare(SESSION, ALL)
    (name,) = cluster.there
    with holding(8), pods.mounted(SESSION, WRITES):
        assert cluster.ended == [(name, 1)] and name not in cluster.there
    assert cluster.there == {}


def test_somebody_without_a_lease_leaves_it_alone(pods: HomePods, cluster: Pods) -> None:
    with holding(7):
        pods.prepare(SESSION, ALL)
    (name,) = cluster.there
    pods.prepare(SESSION, ALL)
    with pods.mounted(SESSION, READS):
        assert name in cluster.there and len(cluster.there) == 2
    assert [*cluster.there] == [name]


def test_nothing_goes_on_in_it_after_a_failure(pods: HomePods, cluster: Pods) -> None:
    with holding(7):
        pods.prepare(SESSION, ALL)
        with pytest.raises(RefitError), pods.mounted(SESSION, WRITES):
            raise RefitError("the connection was lost")
        assert cluster.there == {}
        with pytest.raises(RefitError), pods.mounted(SESSION, WRITES):
            raise RefitError("the connection was lost")
    assert [grace for _, grace in cluster.ended] == [1, 1]


def test_where_the_home_is_on_no_node_none_is_prepared(pods: HomePods, cluster: Pods) -> None:
    cluster.node = ""
    with holding(7):
        pods.prepare(SESSION, ALL)
    assert cluster.there == {}
