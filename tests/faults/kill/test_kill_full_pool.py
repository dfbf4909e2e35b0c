"""The last byte of the pool is written while a snapshot is taken or a session cloned, and the process is killed then.

The home is as it was, nothing is half made, and once there is room the same is done.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.snapshots import snapshot_actions
from flows.migrations.snapshots.clone_session import Wish, clone, remove_killed
from flows.sessions.homes import cloning
from flows.sessions.homes.home_snapshots import HomeSnapshots
from flows.sessions.homes.pool import Pool
from flows.sessions.lifecycle import Sessions
from flows.sessions.snapshots.model import Snapshot
from flows.sessions.snapshots.records import SnapshotRecords
from flows.sessions.store import Store
from tests.support.killing import NAME, Scene, in_smallest_pool
from tests.support.machine import RegistryServer
from tests.support.moving import manifest
from tests.support.pools import fill, make_room
from tests.support.processes import in_a_process
from tests.support.variants import LIGHT, light

SMALL = 2_000  # files whose owner is written anew in a clone
TAKING = [(HomeSnapshots, "copy"), (HomeSnapshots, "note"), (SnapshotRecords, "complete")]
CLONING = [(cloning, "make_draft"), (cloning, "drop_own"), (Store, "add"), (cloning, "give")]


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
        yield scene


@pytest.fixture
def pool(scene: Scene) -> Iterator[Pool]:
    pool = Pool(scene.settings)
    yield pool
    make_room(pool)


@pytest.fixture
def then(scene: Scene, pool: Pool) -> Iterator[Snapshot]:
    """A snapshot, since which people have worked in the session."""
    scene.sessions.execute(NAME, ["sh", "-c", "rm -rf project/since; echo then >project/state"])
    made = snapshot_actions.take(scene.sessions, NAME, "ada", called="then")
    script = "echo now >project/state; mkdir -p project/since; head -c 300000 /dev/urandom >project/since/more"
    scene.sessions.execute(NAME, ["sh", "-c", script])
    yield made
    make_room(pool)
    for one in snapshot_actions.all_of(scene.sessions, scene.sessions.store.session(NAME)):
        snapshot_actions.remove(scene.sessions, NAME, one.id, "ada")


def home_of(scene: Scene) -> object:
    return manifest(scene.sessions.store.session(NAME).home)


def killed(work: Callable[[], object]) -> None:
    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def contents(scene: Scene) -> list[object]:
    """The home, and all snapshots of it that a person can go back to."""
    session = scene.sessions.store.session(NAME)
    taken = snapshot_actions.all_of(scene.sessions, session)
    return [home_of(scene), *(manifest(scene.sessions.homes.snapshot(NAME, one.id)) for one in taken)]


def deadly(pool: Pool, owner: object, name: str, *, after: bool) -> None:
    """Let this process fill the pool before a call, and be killed before or after it, however that ends."""
    real = getattr(owner, name)

    def instead(*words: object, **named: object) -> object:
        fill(pool, 0)
        try:
            return real(*words, **named) if after else None
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, instead)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), TAKING, ids=[name for _, name in TAKING])
def test_a_snapshot(scene: Scene, pool: Pool, then: Snapshot, owner: object, name: str, after: bool) -> None:
    before, earlier = home_of(scene), manifest(scene.sessions.homes.snapshot(NAME, then.id))

    def work() -> None:
        deadly(pool, owner, name, after=after)
        snapshot_actions.take(Sessions.open(scene.settings), NAME, "ada", called="half")

    killed(work)
    whole = [one.name for one in snapshot_actions.all_of(scene.sessions, scene.sessions.store.session(NAME))]
    assert whole == (["then", "half"] if (name, after) == ("complete", True) else ["then"])
    make_room(pool)
    more = snapshot_actions.take(scene.sessions, NAME, "ada", called="more")
    folders = {path.name for path in (pool.snapshots / NAME).iterdir() if not path.name.startswith(".")}
    there = snapshot_actions.all_of(scene.sessions, scene.sessions.store.session(NAME))
    assert folders == {one.id for one in there} and home_of(scene) == before
    assert manifest(scene.sessions.homes.snapshot(NAME, more.id)) == before and earlier in contents(scene)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), CLONING, ids=[name for _, name in CLONING])
def test_a_clone(scene: Scene, pool: Pool, then: Snapshot, owner: object, name: str, after: bool) -> None:
    before = home_of(scene)

    def work() -> None:
        deadly(pool, owner, name, after=after)
        clone(scene.settings, NAME, Wish("ada2", snapshot="then"), "ada")

    killed(work)
    assert home_of(scene) == before
    remove_killed(scene.sessions)  # the pool is still full
    there = scene.sessions.store.find("ada2")
    if there and there[0].home.exists():  # it was whole
        files = manifest(there[0].home)
        assert files.keys() == manifest(scene.sessions.homes.snapshot(NAME, then.id)).keys()
        assert {entry[1] for entry in files.values()} == {there[0].uid}
        scene.sessions.remove("ada2", purge=True)
    assert scene.sessions.store.find("ada2") is None and not scene.sessions.store.has_home("ada2")
    assert scene.sessions.homes.drafts() == () and not scene.sessions.homes.path("ada2").exists()
    make_room(pool)
    clone(scene.settings, NAME, Wish("ada2", snapshot="then"), "ada")
    scene.sessions.remove("ada2", purge=True)
    assert home_of(scene) == before
