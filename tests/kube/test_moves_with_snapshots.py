"""Moves in a cluster whose homes have snapshots: by a Pod that copies, and by a storage class of a double."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from flows.core.settings.cluster import ClusterSettings, Snapshots
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Phase
from flows.migrations.move_steps import State, StepName
from flows.migrations.rehearsals.rehearsal import rehearse
from flows.migrations.snapshots import roll_back, snapshot_actions
from flows.sessions.kubernetes.home_pods import LEASE, POD, HomePods
from flows.sessions.kubernetes.manifests import claim
from tests.support.cluster import NAMESPACE, Lab, kubectl
from tests.support.cluster_moves import NAME, ClusterScene, cluster_scene
from tests.support.killing import move_until_killed
from tests.support.moving import carry_out, to
from tests.support.volume_snapshots import CLASS, storage_with_snapshots
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
SPOILS = "echo spoiled >>work.py; rm -r 'a folder'; exit 3"
COPIES, BY_STORAGE = "copies", "snapshots"


@pytest.fixture(scope="module", params=[COPIES, BY_STORAGE])
def way(request: pytest.FixtureRequest) -> str:
    """How snapshots are taken."""
    return str(request.param)


@pytest.fixture(scope="module")
def scene(cluster: Lab, tmp_path_factory: pytest.TempPathFactory, way: str) -> Iterator[ClusterScene]:
    storage = CLASS if way == BY_STORAGE else ""
    kubernetes = ClusterSettings(namespace=NAMESPACE, home_gb=1, snapshots=Snapshots.auto, storage_class=storage)
    folder, own = tmp_path_factory.mktemp("with-snapshots"), tmp_path_factory.mktemp("storage")
    with (
        storage_with_snapshots(own) if storage else nullcontext(),
        cluster_scene(folder, late=True, bad=SPOILS, kubernetes=kubernetes) as scene,
    ):
        yield scene


@pytest.fixture(autouse=True)
def nothing_but_the_home_is_left(scene: ClusterScene, way: str) -> Iterator[None]:
    """After each test, the session has one claim, and no snapshot or Pod for it is left."""
    yield
    kinds = "persistentvolumeclaims" + (",volumesnapshots" if way == BY_STORAGE else "")
    told = json.loads(kubectl("get", kinds, "-o", "json"))["items"]
    assert [(each["kind"], each["metadata"]["name"]) for each in told] == [("PersistentVolumeClaim", claim(NAME))]
    wait_until(lambda: not scene.pods(POD))


@pytest.fixture
def stay(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each Pod for the home that this process begins, whether it stays until its move has proven the image."""
    begun: list[bool] = []
    begin = HomePods._begin

    def recorded(pods: HomePods, manifest: Mapping[str, Any]) -> None:
        begun.append(LEASE in manifest["metadata"]["annotations"])
        begin(pods, manifest)

    monkeypatch.setattr(HomePods, "_begin", recorded)
    return begun


def test_a_home_that_the_new_image_spoils_is_brought_back(scene: ClusterScene, way: str, stay: list[bool]) -> None:
    files, image = scene.files(), scene.sessions.store.session(NAME).image
    told = scene.sessions.homes.prices()[NAME]  # so the plan says
    assert ("a Pod beside the session copies" if way == COPIES else "the storage class takes them") in told
    assert "is measured by the first move" in told
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, scene.bad))
    assert result.state is State.rolled_back, result.reason
    scene.check(State.rolled_back, image, files)
    assert way != COPIES or {*stay} == {True}


def test_a_move_keeps_the_home_and_begins_no_pod_while_the_session_is_away(
    scene: ClusterScene, way: str, stay: list[bool]
) -> None:
    files, image = scene.files(), scene.other
    told = scene.sessions.homes.prices()[NAME]
    assert "the last one took" in told and "the way back of the home took" in told
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, image))
    assert result.state is State.cleaned, result.reason
    scene.check(State.cleaned, image, files)
    assert way != COPIES or {*stay} == {True}


@pytest.mark.parametrize("step", [StepName.snapshot, StepName.restore])
def test_killed_at_a_snapshot_the_home_is_whole(scene: ClusterScene, step: StepName) -> None:
    files, image = scene.files(), scene.sessions.store.session(NAME).image
    move_until_killed(scene.settings, to(scene.sessions, NAME, scene.bad), step, Phase.intent)
    scene.resume()
    scene.check(State.rolled_back, image, files)


def test_a_person_goes_back_to_a_snapshot_and_is_told_the_cost_first(scene: ClusterScene) -> None:
    files = scene.files()
    taken = snapshot_actions.take(scene.sessions, NAME, "ada", called="then")
    scene.sessions.execute(NAME, ["sh", "-c", "echo more >>/home/dev/work.py"])
    foreseen = roll_back.foresee(scene.settings, NAME, "then")
    assert foreseen.changed == ("changed: work.py",) and "while the session is away" in foreseen.cost
    result = roll_back.roll_back(scene.settings, NAME, "then", "ada", force=True)
    assert result.state is State.cleaned, result.reason
    assert scene.files() == files
    for snapshot in snapshot_actions.all_of(scene.sessions, scene.sessions.store.session(NAME)):
        snapshot_actions.remove(scene.sessions, NAME, snapshot.id, "ada")
    assert taken.name == "then"


def test_a_rehearsal_has_a_copy_of_the_home(scene: ClusterScene) -> None:
    files, session = scene.files(), scene.sessions.store.session(NAME)
    spoilt = replace(session, image=scene.bad, generation=99)
    seen = rehearse(scene.settings, scene.sessions.homes, spoilt)
    assert seen.with_home and seen.failed
    assert scene.files() == files
