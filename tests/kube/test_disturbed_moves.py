"""Somebody or something disturbs a move in the middle: the session comes to an end with its home, on the one image or
the other, and by one writer.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import pytest

from flows.core.errors import RefitError
from flows.migrations.drains import MachineDrains
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Phase
from flows.migrations.move_steps import State, StepName
from flows.migrations.recovery import recover_all
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from tests.support import cluster_faults
from tests.support.cluster import Lab, kubectl
from tests.support.cluster_faults import DisturbedJournal
from tests.support.cluster_moves import NAME, ClusterScene, cluster_scene
from tests.support.moving import to
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
ENDS = {State.cleaned, State.rolled_back, State.deferred, State.skipped}


@pytest.fixture(scope="module", params=[False, True], ids=["cold", "late"])
def scene(
    cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterScene]:
    with cluster_scene(tmp_path_factory.mktemp("disturbed"), late=request.param) as scene:
        yield scene


def pod_of(scene: ClusterScene) -> str:
    (pod,) = scene.pods()
    return pod


def state_of(scene: ClusterScene) -> tuple[object, str, str]:
    """The files of the home, the image of the session, and the one that it will move to."""
    return scene.files(), scene.sessions.store.session(NAME).image, scene.renewed(scene.other)


def slot_of(scene: ClusterScene, generation: int) -> str:
    """The slot in which a generation runs."""
    annotations = json.loads(kubectl("get", pod_of(scene), "-o", "json"))["metadata"]["annotations"]
    opened = {name: json.loads(text) for name, text in annotations.items() if name.startswith("io.refit.opened-")}
    return next(str(name)[-1] for name, told in opened.items() if told["generation"] == generation)


def look_once(scene: ClusterScene) -> None:
    """Let the waiting page's turn come, and the sessions come back that have lost their Pods."""
    drains = MachineDrains(scene.settings)
    drains.run_once()
    drains.lost.wait()


def move_disturbed(scene: ClusterScene, image: str, step: str, phase: Phase, disturb: Callable[[], object]) -> State:
    """Move to an image, disturb that, and let whoever comes afterwards see to what is left; how it ended."""
    journal = DisturbedJournal(scene.settings, step, phase, disturb)
    result = MoveExecutor(scene.settings, Sessions.open(scene.settings), journal).carry_out(
        to(scene.sessions, NAME, image)
    )
    assert journal.disturbed, result
    if isinstance(thread := disturb.__dict__.get("thread"), Thread):
        thread.join()
    recover_all(MoveExecutor.open(scene.settings))
    look_once(scene)
    return result.state


def is_as_recorded(scene: ClusterScene) -> bool:
    """Whether the session runs, in a Pod that is as Refit has made it; if not, the waiting page's turn comes again."""
    status = scene.sessions.show(NAME)
    if status.running is Running.running and not scene.sessions.engine.by_hand(status.session):
        return True
    look_once(scene)
    return False


def is_whole(scene: ClusterScene, state: State, image: str, files: object) -> bool:
    """Whether all of it is so. A kubelet may end a container late, long after somebody has asked for another image."""
    if not is_as_recorded(scene) or len(scene.pods()) != 1:
        return False
    try:
        scene.check(state, image, files)
    except (RefitError, AssertionError):
        if is_as_recorded(scene) and answers(scene):
            raise
        return False
    return True


def answers(scene: ClusterScene) -> bool:
    """Whether programs run in the session."""
    try:
        scene.sessions.execute(NAME, ["true"])
    except RefitError:
        return False
    return True


def check(scene: ClusterScene, state: State, files: object, before: str, after: str) -> None:
    """It runs, on the image that the end of the move says, with its home, in one Pod."""
    assert state in ENDS, scene.journal.latest()[NAME].reason
    image = after if state is State.cleaned else before
    wait_until(lambda: is_whole(scene, state, image, files))


MOMENTS = [
    (StepName.create, Phase.done),
    (StepName.stop, Phase.intent),
    (StepName.stop, Phase.done),
    (StepName.start, Phase.done),
    (StepName.verify, Phase.intent),
]


@pytest.mark.parametrize(("step", "phase"), MOMENTS)
def test_somebody_deletes_its_pod(scene: ClusterScene, step: StepName, phase: Phase) -> None:
    files, before, after = state_of(scene)
    pod = pod_of(scene)
    state = move_disturbed(scene, after, step, phase, lambda: kubectl("delete", pod, "--grace-period=1"))
    check(scene, state, files, before, after)


@pytest.mark.parametrize(("step", "phase"), [(StepName.create, Phase.done), (StepName.start, Phase.done)])
def test_kubelet_evicts_its_pod(scene: ClusterScene, step: StepName, phase: Phase) -> None:
    files, before, after = state_of(scene)
    pod = pod_of(scene)
    state = move_disturbed(scene, after, step, phase, lambda: cluster_faults.evict(pod, "a"))
    check(scene, state, files, before, after)


def test_its_new_program_is_killed_as_for_want_of_memory(scene: ClusterScene) -> None:
    files, before, after = state_of(scene)
    generation = scene.sessions.store.session(NAME).generation + 1

    def kill() -> None:
        with suppress(subprocess.CalledProcessError):  # the shell that kills is killed as well
            kubectl("exec", pod_of(scene), "-c", slot_of(scene, generation), "--", "sh", "-c", "kill -KILL -1")

    state = move_disturbed(scene, after, StepName.start, Phase.done, kill)
    assert state is State.rolled_back
    check(scene, state, files, before, after)


@pytest.mark.parametrize(("step", "phase"), MOMENTS)
def test_somebody_patches_the_image_of_a_slot(scene: ClusterScene, step: StepName, phase: Phase) -> None:
    files, before, after = state_of(scene)
    pod = pod_of(scene)
    image = kubectl("get", pod, "-o", "jsonpath={.spec.containers[0].image}").rpartition("@")[0]
    state = move_disturbed(
        scene,
        after,
        step,
        phase,
        lambda: kubectl("set", "image", pod, f"a={image}@{scene.bad}", f"b={image}@{scene.bad}"),
    )
    check(scene, state, files, before, after)


@pytest.mark.parametrize(("step", "phase"), MOMENTS)
def test_the_api_server_is_killed(scene: ClusterScene, step: StepName, phase: Phase) -> None:
    files, before, after = state_of(scene)

    def kill() -> None:
        kill.__dict__["thread"] = cluster_faults.kill_api_server(away=3)

    state = move_disturbed(scene, after, step, phase, kill)
    check(scene, state, files, before, after)


@pytest.mark.parametrize(("step", "phase"), [(StepName.create, Phase.intent), (StepName.stop, Phase.intent)])
def test_a_kubelet_is_killed(scene: ClusterScene, step: StepName, phase: Phase) -> None:
    files, before, after = state_of(scene)
    node = kubectl("get", pod_of(scene), "-o", "jsonpath={.spec.nodeName}")

    def kill() -> None:
        kill.__dict__["thread"] = cluster_faults.kill_kubelet(node, away=3)

    state = move_disturbed(scene, after, step, phase, kill)
    check(scene, state, files, before, after)
