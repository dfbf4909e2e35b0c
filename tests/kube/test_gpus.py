"""GPUs of a device plugin on a real cluster: one container has them, a move stays in it, and others wait for them.
A cluster of 1.20 refuses claims of devices.

No device plugin is at hand. Scheduler and kubelet count a resource that is written into a node's status.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from flows.catalog.model import Resources
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings, Snapshots
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State, StepName
from flows.services import doctor_cluster
from flows.sessions.lifecycle import NotStarted, Sessions
from flows.sessions.model import Running
from tests.support import cluster_images
from tests.support.cluster import NAMESPACE, Lab, kubectl
from tests.support.cluster_moves import NAME, ClusterScene, cluster_scene
from tests.support.moving import carry_out, to
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
GPU, NODE, OTHER = "example.com/gpu", "n1", "bob"
ONE = Resources(gpus=1, memory="500 MB", cpus=0.9)


def offer(amount: str | None) -> None:
    """Let a node have so many GPUs; none: no such resource."""
    path = f"/api/v1/nodes/{NODE}"

    def is_written() -> bool:
        node = json.loads(kubectl("get", "--raw", path))
        for there in (node["status"]["capacity"], node["status"]["allocatable"]):
            there.pop(GPU, None)
            there.update({GPU: amount} if amount else {})
        try:
            kubectl("replace", "--raw", f"{path}/status", "-f", "-", stdin=json.dumps(node))
        except subprocess.CalledProcessError:  # its kubelet has written its status meanwhile
            return False
        return True

    wait_until(is_written)


@pytest.fixture(scope="module")
def gpus(cluster: Lab) -> Iterator[None]:
    """One GPU in the cluster."""
    offer("1")
    yield
    offer(None)


@pytest.fixture(scope="module")
def scene(gpus: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with cluster_scene(tmp_path_factory.mktemp("gpus"), late=True, resources=ONE, kubernetes=with_minutes(10)) as scene:
        yield scene


CHOSEN = {"namespace": NAMESPACE, "home_gb": 1, "snapshots": Snapshots.none}


def with_minutes(minutes: float) -> ClusterSettings:
    return ClusterSettings(**CHOSEN, gpu_resource=GPU, start_minutes=minutes)


def sessions_that_wait(settings: Settings, minutes: float) -> Sessions:
    """The sessions of these settings, whose Pods have so many minutes to begin."""
    return Sessions.open(settings.model_copy(update={"kubernetes": with_minutes(minutes)}))


def pods_of(session: str) -> list[dict[str, Any]]:
    selected = ("-l", f"io.refit.session={session},io.refit.kind=session")
    return list(json.loads(kubectl("get", "pods", *selected, "-o", "json"))["items"])


def gpus_of(pod: dict[str, Any]) -> dict[str, str]:
    """Container → the GPUs that it asks for."""
    return {
        each["name"]: each.get("resources", {}).get("limits", {}).get(GPU, "0") for each in pod["spec"]["containers"]
    }


@contextmanager
def another(scene: ClusterScene, resources: Resources) -> Iterator[Sessions]:
    """A second session, which is gone afterwards with its home."""
    sessions = Sessions.open(scene.settings)
    try:
        sessions.create(OTHER, "p", "2026a", scene.good[0], cluster_images.LATE_SERVER, resources=resources)
        yield sessions
    finally:
        sessions.remove(OTHER, purge=True)


def test_a_session_moves_in_the_container_that_has_its_gpu_and_back(scene: ClusterScene) -> None:
    files, image, (pod,) = scene.files(), scene.other, pods_of(NAME)
    assert gpus_of(pod) == {"a": "1"} and pod["spec"]["nodeName"] == NODE
    asked = {"cpu": "900m", "memory": "500M", GPU: "1"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": asked, "requests": asked}
    assert scene.sessions.engine.by_hand(scene.sessions.store.session(NAME)) == ()

    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, image))
    assert result.state is State.cleaned, result.reason
    scene.check(State.cleaned, image, files)
    warm = {entry.note for entry in scene.journal.entries(scene.journal.latest()[NAME]) if entry.step == StepName.warm}
    assert "not warm: one container has its GPUs, and the next one takes its place" in warm

    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, scene.bad))
    assert result.state is State.rolled_back, result.reason
    scene.check(State.rolled_back, image, files)
    (after,) = pods_of(NAME)
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]


def test_a_second_session_waits_for_the_gpu_until_the_first_is_stopped(scene: ClusterScene) -> None:
    files = scene.files()
    waiting = sessions_that_wait(scene.settings, minutes=0.5)
    try:
        with pytest.raises(NotStarted, match=f"Insufficient {GPU}"):
            waiting.create(OTHER, "p", "2026a", scene.good[0], cluster_images.LATE_SERVER, resources=ONE)
        assert pods_of(OTHER) == [], "it would take the GPU, once that is free, for a session that doesn't run"
        assert scene.sessions.show(NAME).running is Running.running

        scene.sessions.stop(NAME)
        assert pods_of(NAME) == []
        Sessions.open(scene.settings).start(OTHER)
        assert [gpus_of(pod) for pod in pods_of(OTHER)] == [{"a": "1"}]
    finally:
        Sessions.open(scene.settings).remove(OTHER, purge=True)
    scene.sessions.start(NAME)
    assert scene.files() == files and [gpus_of(pod) for pod in pods_of(NAME)] == [{"a": "1"}]


def test_a_session_that_can_t_have_one_is_not_stopped_for_it(scene: ClusterScene) -> None:
    with another(scene, Resources()) as sessions:
        (before,) = pods_of(OTHER)
        assert gpus_of(before) == {"a": "0", "b": "0"}

        decision = to(sessions, OTHER, scene.good[1])
        result = MoveExecutor.open(scene.settings).carry_out(decision, becomes=lambda after: replace(after, gpus=1))
        assert result.state is State.deferred and result.downtime is None, result
        assert f"Insufficient {GPU}" in result.reason, result.reason
        (after,) = pods_of(OTHER)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]

        def change(number: int) -> State:
            executor, image = MoveExecutor.open(scene.settings), scene.good[number]
            decision = to(sessions, OTHER, image)
            return carry_out(executor, decision, becomes=lambda after: replace(after, gpus=number)).state

        scene.sessions.stop(NAME)
        assert change(1) is State.cleaned
        assert [gpus_of(pod) for pod in pods_of(OTHER)] == [{"a": "1"}]
        assert change(0) is State.cleaned
        assert [gpus_of(pod) for pod in pods_of(OTHER)] == [{"a": "0", "b": "0"}]
    scene.sessions.start(NAME)


def test_one_whose_pod_somebody_deletes_gets_the_gpu_again(scene: ClusterScene) -> None:
    files, (pod,) = scene.files(), pods_of(NAME)
    kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    scene.sessions.start(NAME)
    assert scene.files() == files
    (after,) = pods_of(NAME)
    assert after["metadata"]["uid"] != pod["metadata"]["uid"] and gpus_of(after) == {"a": "1"}


def test_where_pods_can_t_claim_devices_nobody_is_stopped_for_one_and_the_doctor_says_so(scene: ClusterScene) -> None:
    by_class = ClusterSettings(**CHOSEN, gpu_device_class="gpu.example.com")
    settings = scene.settings.model_copy(update={"kubernetes": by_class})
    (before,) = pods_of(NAME)
    result = MoveExecutor.open(settings).carry_out(to(Sessions.open(settings), NAME, scene.other))
    assert result.state is State.deferred and result.downtime is None, result
    assert "The cluster has no resource.k8s.io that Refit can use." in result.reason, result.reason
    (after,) = pods_of(NAME)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]

    (finding,) = (each for each in doctor_cluster.cluster(settings) if each.thing == "GPUs")
    assert not finding.ok and "1.34" in finding.seen and "kubernetes.gpu_resource" in finding.hint
