"""A node is drained, and a node dies: its sessions leave it or come up elsewhere, each with its home."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from flows.core.settings.cluster import ClusterSettings, Effect, Toleration
from flows.migrations.drains import MachineDrains
from flows.migrations.move import Consent
from flows.migrations.move_steps import State
from flows.migrations.rollouts.session_planner import plan_migration
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.kubernetes import manifests
from flows.sessions.model import Running
from tests.support.cluster import FOLDER, NAMESPACE, Lab, kube, kubectl
from tests.support.cluster_moves import NAME, ClusterScene, cluster_scene
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.long]
# Kubernetes gives a Pod on a node of which nobody hears 300 s, unless it says otherwise.
UNHEARD = Toleration(key="node.kubernetes.io/unreachable", effect=Effect.no_execute, seconds=2)
UNREADY = Toleration(key="node.kubernetes.io/not-ready", effect=Effect.no_execute, seconds=2)
BUSY = "exec python3 -c 'while True: pass'"


@pytest.fixture(scope="module", params=[False, True], ids=["cold", "late"])
def scene(
    cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterScene]:
    settings = ClusterSettings(namespace=NAMESPACE, home_gb=1, drain_minutes=30, tolerations=(UNHEARD, UNREADY))
    with cluster_scene(tmp_path_factory.mktemp("drains"), late=request.param, kubernetes=settings) as scene:
        yield scene


@pytest.fixture(autouse=True)
def open_nodes(scene: ClusterScene) -> Iterator[None]:
    yield
    for node in nodes():
        kubectl("uncordon", node)


def nodes() -> list[str]:
    return kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()


def ready() -> list[str]:
    """The nodes that say that they are ready."""
    seen = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    says = {
        node["metadata"]["name"]: {each["type"]: each["status"] for each in node["status"]["conditions"]}
        for node in seen
    }
    return [name for name, told in says.items() if told.get("Ready") == "True"]


def node_of() -> str:
    """The node on which the session is."""
    selected = ("-l", f"io.refit.session={NAME},io.refit.kind=session", "-o", "json")
    (pod,) = (
        pod
        for pod in json.loads(kubectl("get", "pods", *selected))["items"]
        if "deletionTimestamp" not in pod["metadata"]
    )
    return str(pod["spec"]["nodeName"])


def uids() -> list[str]:
    """The Pods of the session, by what tells one from the next of its name."""
    selected = ("-l", f"io.refit.session={NAME},io.refit.kind=session")
    return kubectl("get", "pods", *selected, "-o", "jsonpath={.items[*].metadata.uid}").split()


def drains(scene: ClusterScene, minutes: float = 30) -> MachineDrains:
    """The object that the waiting page asks every few seconds."""
    chosen = scene.settings.kubernetes.model_copy(update={"drain_minutes": minutes})
    return MachineDrains(scene.settings.model_copy(update={"kubernetes": chosen}))


def drain(node: str) -> subprocess.Popen[bytes]:
    """`kubectl drain`, as an administrator types it, with two minutes until its time-out."""
    call = [f"{FOLDER}/bin/kubectl", f"--kubeconfig={FOLDER}/run/admin.kubeconfig", "drain", node, "--force"]
    ours = ["--pod-selector=io.refit.kind=session", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"]
    return subprocess.Popen([*call, *ours])


def test_a_drain_waits_until_the_session_has_moved(scene: ClusterScene) -> None:
    files, image, node = scene.files(), scene.sessions.store.session(NAME).image, node_of()
    asked = drains(scene)
    assert asked.run_once() == () and kubectl("get", "pdb", manifests.BUDGET, "-o", "name")
    draining = drain(node)
    try:
        wait_until(lambda: kubectl("get", "node", node, "-o", "jsonpath={.spec.unschedulable}") == "true")
        wait_until(lambda: asked.run_once() != () or node_of() != node)
        assert draining.wait(120) == 0
    finally:
        draining.kill()
    assert node_of() != node
    scene.check(State.cleaned, image, files)
    events = History(scene.sessions.store.database).events(session=NAME, kinds=(Kind.leaves,))
    assert [event.data["machine"] for event in events][-1] == node
    assert asked.run_once() == ()


def test_somebody_at_work_is_waited_for_and_moved_by_the_deadline(scene: ClusterScene) -> None:
    image, node = scene.sessions.store.session(NAME).image, node_of()
    scene.sessions.execute(NAME, ["sh", "-c", f"({BUSY}) >/dev/null 2>&1 & echo $! >/tmp/busy"])
    kubectl("cordon", node)
    (line,) = plan_migration([], "", scene.settings)
    assert f"leave the machine {node}" in line.machine and "UTC" not in line.machine
    assert drains(scene).run_once() == () and node_of() == node
    (line,) = plan_migration([], "", scene.settings)
    assert f"leave the machine {node}" in line.machine and "UTC in any case" in line.machine
    assert scene.sessions.show(NAME).running is Running.running
    (result,) = drains(scene, minutes=0.0001).run_once()
    assert result.state is State.cleaned and node_of() != node
    move = scene.journal.latest()[NAME]
    assert move.consent is Consent.forced and move.after.image == image
    scene.check(State.cleaned, image, scene.files())


def test_a_node_that_is_opened_again_keeps_its_sessions(scene: ClusterScene) -> None:
    node = node_of()
    scene.sessions.execute(NAME, ["sh", "-c", f"({BUSY}) >/dev/null 2>&1 & echo $! >/tmp/busy"])
    kubectl("cordon", node)
    assert drains(scene).run_once() == ()
    kubectl("uncordon", node)
    wait_until(lambda: not scene.sessions.machines.leaving())
    assert drains(scene, minutes=0.0001).run_once() == () and node_of() == node
    events = History(scene.sessions.store.database).events(session=NAME, kinds=(Kind.leaves,))
    assert [event.data["machine"] for event in events[-2:]] == [node, ""]
    scene.sessions.execute(NAME, ["sh", "-c", "kill $(cat /tmp/busy); rm /tmp/busy"])


def test_where_no_other_node_takes_it_it_runs_on(scene: ClusterScene) -> None:
    image, files, node = scene.sessions.store.session(NAME).image, scene.files(), node_of()
    for each in nodes():
        kubectl("cordon", each)
    (result,) = drains(scene).run_once()
    assert result.state is State.deferred and "No other node takes" in result.reason, result
    assert "unschedulable" in result.reason and result.downtime is None and node_of() == node
    scene.check(State.deferred, image, files)


def test_a_session_that_is_stopped_leaves_nothing_there(scene: ClusterScene) -> None:
    node, files = node_of(), scene.files()
    scene.sessions.stop(NAME)
    kubectl("cordon", node)
    drains(scene).run_once()
    wait_until(lambda: not scene.pods())
    scene.sessions.start(NAME)
    assert node_of() != node and scene.files() == files


def test_a_pod_that_somebody_deletes_comes_back_with_its_home(scene: ClusterScene) -> None:
    files, (pod,) = scene.files(), scene.pods()
    kubectl("delete", pod, "--grace-period=1")
    asked = drains(scene)
    asked.run_once()
    asked.lost.wait()
    assert scene.sessions.show(NAME).running is Running.running and scene.files() == files
    wait_until(lambda: len(scene.pods()) == 1)


def test_a_session_on_a_dead_node_comes_up_elsewhere_when_kubernetes_lets_go_of_it(scene: ClusterScene) -> None:
    files, node, (pod,), first = scene.files(), node_of(), scene.pods(), uids()
    asked = drains(scene)
    kube("node-stop", node)
    try:
        wait_until(lambda: bool(kubectl("get", pod, "-o", "jsonpath={.metadata.deletionTimestamp}")))
        asked.run_once()  # the Pod may still write there, as far as Kubernetes knows
        assert uids() == first
        kubectl("delete", "node", node)
        # Kubernetes looks for Pods of nodes that are gone every 20 s, and waits for 40 s more until it removes one.
        wait_until(
            lambda: asked.run_once() == () and scene.sessions.show(NAME).running is Running.running, 4 * PATIENCE
        )
        assert uids() != first and node_of() != node
        assert scene.files() == files
    finally:
        kube("node-start", node)
        wait_until(lambda: node in ready())
