"""Moves of sessions on a real cluster: look, rehearsal, stop, start, proof, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from flows.core.settings.policy import RolloutPolicy
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Phase
from flows.migrations.move_steps import State, StepName
from flows.migrations.rehearsals.rehearsal import Rehearsal, rehearse
from tests.support import hollow_images
from tests.support.cluster import Lab
from tests.support.cluster_moves import NAME, ClusterScene, cluster_scene
from tests.support.moving import carry_out, to

pytestmark = [pytest.mark.long]


@pytest.fixture(scope="module", params=[False, True], ids=["cold", "late"])
def scene(
    cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ClusterScene]:
    with cluster_scene(tmp_path_factory.mktemp("moves"), late=request.param) as scene:
        yield scene


def rehearsed(scene: ClusterScene, image: str) -> Rehearsal:
    session = scene.sessions.store.session(NAME)
    return rehearse(scene.settings, scene.sessions.homes, replace(session, image=image, generation=99))


def notes(scene: ClusterScene) -> dict[str, str]:
    """Step → what its line in the journal says, of the last move."""
    entries = scene.journal.entries(scene.journal.latest()[NAME])
    return {entry.step: entry.note for entry in entries if entry.phase is Phase.done}


def test_a_session_moves_with_its_home_and_stays_in_its_pod(scene: ClusterScene) -> None:
    files, image, pods = scene.files(), scene.other, scene.pods()
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, image))
    assert result.state is State.cleaned, result.reason
    scene.check(State.cleaned, image, files)
    assert scene.pods() == pods and result.downtime is not None
    assert "no snapshot of the home" in notes(scene)[StepName.copy]


def test_it_is_rehearsed_beside_the_session_without_its_home(scene: ClusterScene) -> None:
    image, files = scene.other, scene.files()
    seen = rehearsed(scene, image)
    assert not seen.failed and not seen.skipped and not seen.with_home, seen
    assert [finding.check for finding in seen.findings] == ["start", "home", "ide", "hook", "steady"]
    bad = rehearsed(scene, scene.bad)
    assert bad.failed and not scene.pods("trial")
    settings = scene.settings.model_copy(update={"migration": RolloutPolicy(keep_hours=0)})
    executor = MoveExecutor.open(settings)
    result = carry_out(executor, to(scene.sessions, NAME, scene.bad))
    assert result.state is State.rolled_back and "didn't pass its rehearsal." in result.reason
    result = carry_out(executor, to(scene.sessions, NAME, image))
    assert result.state is State.cleaned and "without its home" in notes(scene)[StepName.rehearse]
    scene.check(State.cleaned, image, files)


def test_an_image_that_fails_is_undone(scene: ClusterScene) -> None:
    files, image = scene.files(), scene.sessions.store.session(NAME).image
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, scene.bad))
    assert result.state is State.rolled_back, result.reason
    scene.check(State.rolled_back, image, files)


def test_an_image_without_a_shell_stops_nobody(scene: ClusterScene) -> None:
    session, files, pods = scene.sessions.store.session(NAME), scene.files(), scene.pods()
    empty = hollow_images.push(scene.settings, "empty", {"io.refit.access": session.access.model_dump_json()})
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, empty))
    assert result.state is State.rolled_back and result.downtime is None, result
    scene.check(State.rolled_back, session.image, files)
    assert scene.pods() == pods


def test_somebody_at_work_is_not_disturbed(scene: ClusterScene) -> None:
    image = scene.sessions.store.session(NAME).image
    busy = "exec python3 -c 'while True: pass'"
    scene.sessions.execute(NAME, ["sh", "-c", f"({busy}) >/dev/null 2>&1 & echo $! >/tmp/busy"])
    result = MoveExecutor.open(scene.settings).carry_out(to(scene.sessions, NAME, scene.other))
    assert result.state is State.deferred, result
    scene.sessions.execute(NAME, ["sh", "-c", "kill $(cat /tmp/busy); rm /tmp/busy"])
    scene.check(State.deferred, image, scene.files())
