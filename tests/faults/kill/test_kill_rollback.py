"""The process that brings a home back to a snapshot is killed around every side effect.

Afterwards a new process resumes. After any kill: the session runs, with the home of before or with the home of then,
in the pool and in folders; and the home of before is there, as itself or as a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import pytest

from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.move import Phase
from flows.migrations.move_steps import STEPS, State
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.snapshots import snapshot_actions
from flows.sessions.snapshots.model import Kind, Snapshot
from tests.support.killing import BEFORE_AND_AFTER, NAME, Scene, check_settled, furnished, move_until_killed, resume
from tests.support.machine import RegistryServer
from tests.support.moving import manifest
from tests.support.pools import smallest_pool
from tests.support.variants import LIGHT, light
from tests.support.waiting import some_long

FORWARD = [step.name for step in STEPS]
BACKWARD = [step.undo for step in reversed(STEPS) if step.undo and step.undo != "restore"]


@pytest.fixture(scope="module", params=some_long(["folder", "pool"], short="pool"))
def scene(
    request: pytest.FixtureRequest,
    registry: Registry,
    base: Built,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    folder, image = tmp_path_factory.mktemp("rollback"), partial(light, shared, registry, base)
    pool = smallest_pool(folder / "home") if request.param == "pool" else nullcontext()
    with pool, furnished(folder, registry_server.port, image, LIGHT) as scene:
        yield scene


@pytest.fixture
def then(scene: Scene) -> Iterator[Snapshot]:
    """A snapshot, since which people have worked in the session."""
    scene.sessions.execute(NAME, ["sh", "-c", "rm -rf project/since; echo then >project/state"])
    made = snapshot_actions.take(scene.sessions, NAME, "ada", called="then")
    script = "echo now >project/state; mkdir -p project/since; head -c 300000 /dev/urandom >project/since/more"
    scene.sessions.execute(NAME, ["sh", "-c", script])
    yield made
    for one in snapshot_actions.all_of(scene.sessions, scene.sessions.store.session(NAME)):
        snapshot_actions.remove(scene.sessions, NAME, one.id, "ada")


def home_of(scene: Scene) -> object:
    return manifest(scene.sessions.store.session(NAME).home)


def content_of(scene: Scene, snapshot: str) -> object:
    return manifest(scene.sessions.homes.snapshot_place(NAME, snapshot))


def back(scene: Scene, image: str = "") -> Decision:
    old = scene.sessions.store.session(NAME).image
    return Decision(NAME, Action.migrate, old, image or old)


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", some_long(FORWARD, short="revert"))
def test_killed_on_the_way_it_arrives(scene: Scene, then: Snapshot, step: str, phase: Phase) -> None:
    before = home_of(scene)
    move_until_killed(scene.settings, back(scene), step, phase, then.id)
    resume(scene.settings)
    check_settled(scene, State.cleaned)
    assert home_of(scene) == content_of(scene, then.id) != before
    session = scene.sessions.store.session(NAME)
    [safety] = [one for one in snapshot_actions.all_of(scene.sessions, session) if one.kind is Kind.safety]
    assert content_of(scene, safety.id) == before


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", some_long(BACKWARD, short="reinstate"))
def test_killed_on_the_way_back_the_home_is_as_it_was(scene: Scene, then: Snapshot, step: str, phase: Phase) -> None:
    """The image spoils the home that it gets, and ends at once."""
    before = home_of(scene)
    move_until_killed(scene.settings, back(scene, scene.bad), step, phase, then.id)
    resume(scene.settings)
    check_settled(scene, State.rolled_back)
    assert home_of(scene) == before
    session = scene.sessions.store.session(NAME)
    assert snapshot_actions.all_of(scene.sessions, session) == (then,)
