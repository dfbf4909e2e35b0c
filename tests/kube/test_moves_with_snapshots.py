"""Moves in a cluster whose homes have snapshots, by a Pod that copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from flows.core.settings.cluster import ClusterSettings, Snapshots
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Phase
from flows.migrations.move_steps import State, StepName
from flows.migrations.rehearsal import rehearse
from flows.migrations.snapshots import roll_back, snapshot_actions
from tests.support.cluster import NAMESPACE, Lab
from tests.support.cluster_moves import NAME, ClusterScene, cluster_scene
from tests.support.killing import move_until_killed
from tests.support.moving import carry_out, to

pytestmark = [pytest.mark.long]
SPOILS = "echo spoiled >>work.py; rm -r 'a folder'; exit 3"


@pytest.fixture(scope="module")
def scene(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    kubernetes = ClusterSettings(namespace=NAMESPACE, home_gb=1, snapshots=Snapshots.auto)
    folder = tmp_path_factory.mktemp("with-snapshots")
    with cluster_scene(folder, late=True, bad=SPOILS, kubernetes=kubernetes) as scene:
        yield scene


def test_a_home_that_the_new_image_spoils_is_brought_back(scene: ClusterScene) -> None:
    files, image = scene.files(), scene.sessions.store.session(NAME).image
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, scene.bad))
    assert result.state is State.rolled_back, result.reason
    scene.check(State.rolled_back, image, files)


def test_a_move_keeps_the_home(scene: ClusterScene) -> None:
    files, image = scene.files(), scene.other
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, image))
    assert result.state is State.cleaned, result.reason
    scene.check(State.cleaned, image, files)


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
