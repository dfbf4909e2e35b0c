"""A pool without room, with real containers: snapshots, clones and rollbacks are refused, and nothing is half done."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.snapshots import snapshot_actions
from flows.migrations.snapshots.clone_session import Wish, clone
from flows.migrations.snapshots.roll_back import roll_back
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.pool import Pool
from flows.sessions.model import Running
from tests.support.killing import NAME, Scene, in_smallest_pool
from tests.support.machine import RegistryServer
from tests.support.moving import check_no_gap, manifest
from tests.support.pools import fill
from tests.support.variants import LIGHT, light

SMALL = 20_000  # files of which the clone's owner has to be written into a pool that has no block left


@pytest.fixture(scope="module")
def scene(
    registry: Registry,
    base: Built,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    folder, image = tmp_path_factory.mktemp("full"), partial(light, shared, registry, base)
    with in_smallest_pool(folder, registry_server.port, image, LIGHT, SMALL) as scene:
        snapshot_actions.take(scene.sessions, NAME, "ada", called="then")
        scene.sessions.execute(NAME, ["sh", "-c", "echo now >project/state"])
        yield scene


def check(scene: Scene, home: object) -> None:
    """The session goes on as it was, and nothing of what was tried is left."""
    session = scene.sessions.store.session(NAME)
    assert manifest(session.home) == home
    assert scene.sessions.running(session) is Running.running
    scene.sessions.wait_ready(session)
    assert not scene.journal.unfinished()
    if move := scene.journal.last(NAME):
        check_no_gap(scene.journal.entries(move))
    assert [one.name for one in snapshot_actions.all_of(scene.sessions, session)] == ["then"]
    assert {one.name for one in scene.sessions.store.sessions()} == {NAME} == set(scene.sessions.store.homes())
    assert scene.sessions.homes.drafts() == () and not folder_of(scene.sessions.homes.home_of("ada2")).exists()


@pytest.mark.parametrize(
    "left", [pytest.param(100_000_000, id="little room", marks=pytest.mark.long), pytest.param(0, id="no byte")]
)
def test_what_needs_room_is_refused_and_what_needs_none_is_done(scene: Scene, left: int) -> None:
    home = manifest(scene.sessions.store.session(NAME).home)
    fill(Pool(scene.settings), left)
    with pytest.raises(RefitError, match="no room"):
        snapshot_actions.take(scene.sessions, NAME, "ada", called="more")
    check(scene, home)
    with pytest.raises(RefitError, match="no room"):
        clone(scene.settings, NAME, Wish("ada2"), "ada")
    check(scene, home)
    result = roll_back(scene.settings, NAME, "then", "ada", force=True)
    assert not result.moved and "no room" in result.reason, result
    check(scene, home)
    # Nothing is copied for this one, but for each file a new owner is written.
    try:
        made = clone(scene.settings, NAME, Wish("ada2", snapshot="then"), "ada")
    except RefitError:
        check(scene, home)
    else:
        assert {entry[1] for entry in manifest(made.home).values()} == {made.uid}
        scene.sessions.remove("ada2", purge=True)
        check(scene, home)

    fill(Pool(scene.settings), 600_000_000)
    result = roll_back(scene.settings, NAME, "then", "ada", force=True)
    assert result.moved, result.reason
    [safety] = [
        one for one in snapshot_actions.all_of(scene.sessions, scene.sessions.store.session(NAME)) if one.name != "then"
    ]
    result = roll_back(scene.settings, NAME, safety.name, "ada", force=True)
    assert result.moved and manifest(scene.sessions.store.session(NAME).home) == home
    for one in snapshot_actions.all_of(scene.sessions, scene.sessions.store.session(NAME)):
        if one.name != "then":
            snapshot_actions.remove(scene.sessions, NAME, one.id, "ada")
