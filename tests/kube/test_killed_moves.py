"""The process that moves a session in a cluster is killed around every step; the next one ends the move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.migrations.move import Phase
from flows.migrations.move_steps import OF_EVERY_MOVE, State, StepName
from tests.support.cluster import Lab
from tests.support.cluster_moves import NAME, ClusterScene, cluster_scene
from tests.support.killing import move_until_killed
from tests.support.moving import to

pytestmark = [pytest.mark.long]
FORWARD = [step.name for step in OF_EVERY_MOVE]
BACKWARD = [step.undo for step in reversed(OF_EVERY_MOVE) if step.undo]
PHASES = [Phase.intent, Phase.done]


@pytest.fixture(scope="module", params=[False, True], ids=["cold", "late"])
def scene(
    cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterScene]:
    with cluster_scene(tmp_path_factory.mktemp("killed"), late=request.param) as scene:
        yield scene


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("step", FORWARD)
def test_killed_on_the_way(scene: ClusterScene, step: StepName, phase: Phase) -> None:
    files, image = scene.files(), scene.renewed(scene.other)
    move_until_killed(scene.settings, to(scene.sessions, NAME, image), step, phase)
    scene.resume()
    scene.check(State.cleaned, image, files)
    assert scene.was_interrupted()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("step", BACKWARD)
def test_killed_on_the_way_back(scene: ClusterScene, step: StepName, phase: Phase) -> None:
    files, image = scene.files(), scene.sessions.store.session(NAME).image
    move_until_killed(scene.settings, to(scene.sessions, NAME, scene.renewed(scene.bad)), step, phase)
    scene.resume()
    scene.check(State.rolled_back, image, files)
    assert scene.was_interrupted()
