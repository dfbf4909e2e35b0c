"""Lists as of our own last change, which a server answers without reading thousands of Pods from its database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

from flows.core import fence
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.kubernetes.refusals import ClusterError
from tests.support.pods import OPTIONS, SESSION
from tests.support.waiting import PATIENCE

LEASE = 3


def pod(version: int) -> dict[str, Any]:
    made = manifests.pod(SESSION, OPTIONS, "s")
    made["metadata"] |= {"resourceVersion": str(version), "name": "refit-ada-1"}
    return made


class Listing(Cluster):
    """A cluster with one Pod; it remembers how its list was asked for. `fails`: statuses of its first answers."""

    def __init__(self, *fails: int) -> None:
        super().__init__(replace(OPTIONS))
        self.asked: list[dict[str, str]] = []
        self._fails = list(fails)

    def page(self, resource: str, **params: str) -> dict[str, Any]:
        self.asked.append(params)
        if self._fails:
            error = ClusterError("It doesn't tell.")
            error.status = self._fails.pop(0)
            raise error
        return {"metadata": {}, "items": [pod(9)]}


@pytest.fixture
def seen_now() -> Callable[[Cluster], list[str]]:
    def names(cluster: Cluster) -> list[str]:
        return [each.name for each in Placement(cluster, OPTIONS).seen_now(SESSION.name)]

    return names


def test_after_our_own_change_the_list_may_come_from_the_servers_memory(
    seen_now: Callable[[Cluster], list[str]],
) -> None:
    cluster = Listing()
    with fence.needing(lambda: None, number=LEASE):
        cluster.follower.changed("pods", pod(7))
        assert seen_now(cluster) == ["refit-ada-1"]
    (asked,) = cluster.asked
    assert asked.keys() == {"labelSelector", "resourceVersion"}, (
        "with a limit, say, a server of 1.20 reads its database"
    )
    assert asked["resourceVersion"] == "7" and SESSION.name in asked["labelSelector"]


@pytest.mark.parametrize("lease", [None, LEASE + 1], ids=["no change", "a change under another lease"])
def test_else_the_list_is_that_of_the_servers_database(
    seen_now: Callable[[Cluster], list[str]], lease: int | None
) -> None:
    cluster = Listing()
    if lease:
        with fence.needing(lambda: None, number=lease):
            cluster.follower.changed("pods", pod(7))
    with fence.needing(lambda: None, number=LEASE):
        assert seen_now(cluster) == ["refit-ada-1"]
    assert ["resourceVersion" in asked for asked in cluster.asked] == [False]


def test_a_server_that_has_not_heard_of_the_change_in_time_reads_its_database(
    seen_now: Callable[[Cluster], list[str]],
) -> None:
    cluster = Listing(504)
    with fence.needing(lambda: None, number=LEASE):
        cluster.follower.changed("pods", pod(7))
        assert seen_now(cluster) == ["refit-ada-1"]
    assert ["resourceVersion" in asked for asked in cluster.asked] == [True, False]


def test_a_list_that_is_refused_is_an_error(seen_now: Callable[[Cluster], list[str]]) -> None:
    cluster = Listing(403)
    with fence.needing(lambda: None, number=LEASE):
        cluster.follower.changed("pods", pod(7))
        with pytest.raises(ClusterError):
            seen_now(cluster)


def test_hundreds_that_ask_while_nobody_follows_are_answered_by_few_lists() -> None:
    """As when the API server is just back: for each question it would read the objects of all sessions."""
    told, may_tell = SimpleQueue[bool](), Event()

    class Slow(Listing):
        def page(self, resource: str, **params: str) -> dict[str, Any]:
            may_tell.wait(PATIENCE)
            return super().page(resource, **params)

    cluster, known = Slow(), list[Any]()

    def of(resource: str, session: str) -> tuple[Any, ...] | None:
        told.put(True)
        return tuple(known) or None

    cluster.follower.of = of  # type: ignore[method-assign]
    placement, asking, few = Placement(cluster, OPTIONS), 12, 4
    with ThreadPoolExecutor(asking) as pool:
        answers = [pool.submit(placement.pods, SESSION.name) for _ in range(asking)]
        for _ in range(asking + few):  # those who ask the server look once more before
            told.get(timeout=PATIENCE)
        known.append("followed")
        may_tell.set()
        names = Counter(str(getattr(answer.result(PATIENCE)[0], "name", "followed")) for answer in answers)
    assert names == {"refit-ada-1": few, "followed": asking - few}
    assert len(cluster.asked) == few
