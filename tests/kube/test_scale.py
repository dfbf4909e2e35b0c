"""Sixty sessions on simulated nodes of the real API server, moved all at once; the bench `scale` has thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action
from tests.support import hollow_images, scale
from tests.support.api_faults import faulty
from tests.support.cluster import FOLDER, kubectl
from tests.support.cluster_faults import kill_api_server
from tests.support.simulated_nodes import simulated_nodes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]

SESSIONS, NODES = 60, 3
# Calls of a move, programs in Pods included: 11, and one or two of what a run asks before it follows, or where a watch
# is late. One or two more are made where each move reads the Pods and records of all.
MOST_CALLS = 13


@pytest.fixture
def crowd(api_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[scale.Crowd]:
    folder = tmp_path_factory.mktemp("scale")
    with simulated_nodes(FOLDER, NODES), hollow_images.plain_registry(folder) as port:
        kubectl("create", "namespace", scale.NAMESPACE)
        try:
            wait_until(lambda: kubectl("get", "nodes").count("simulated-") == NODES)
            crowd = scale.crowd(scale.settings_of_crowd(folder / "refit", port), SESSIONS, NODES)
            wait_until(crowd.all_run)
            yield crowd
        finally:
            kubectl("delete", "namespace", scale.NAMESPACE, "--timeout=120s")


def test_all_are_planned_and_moved_at_once(crowd: scale.Crowd) -> None:
    planned = crowd.plan()
    assert {line.action for line in planned} == {Action.migrate} and len(planned) == SESSIONS
    with scale.counted() as calls:
        results = crowd.move(SESSIONS)
    assert Counter(result.state for result in results) == {State.cleaned: SESSIONS}
    assert calls.number <= MOST_CALLS * SESSIONS, calls.seen
    crowd.check()


def test_nothing_is_lost_when_the_api_server_is_killed(crowd: scale.Crowd) -> None:
    with scale.counted() as calls, ThreadPoolExecutor(1) as pool:
        moved = pool.submit(crowd.move, SESSIONS)
        wait_until(lambda: calls.seen["exec run-next"] > SESSIONS / 4)
        kill_api_server(away=2).join()
        results = moved.result()
    crowd.recover()
    crowd.check()
    assert Counter(result.state for result in results)[State.cleaned] > 0


def test_nothing_is_lost_when_every_tenth_call_fails(crowd: scale.Crowd) -> None:
    with faulty(every=10) as sent:
        results = crowd.move(20)
    assert sent.failed > SESSIONS / 3  # of five calls of a move that are no programs in Pods
    crowd.recover()
    crowd.check()
    assert Counter(result.state for result in results)[State.cleaned] > SESSIONS / 2
