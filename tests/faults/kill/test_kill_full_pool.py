"""The last byte of the pool is written while a snapshot is taken, a session cloned or gone back, and the process is
killed right then.

Afterwards a new process resumes while the pool is still full, and once more when there is room. At each moment the home
is as before or as then, as a whole, and the other one of them can be had.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from flows.core.leases import Lease
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Also
from flows.migrations.move import Entry, Move, Phase
from flows.migrations.move_steps import State, StepName
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.recovery import NotRecovered, recover_all
from flows.migrations.snapshots import snapshot_actions
from flows.migrations.snapshots.clone_session import Wish, clone, remove_killed
from flows.sessions.homes import cloning
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home_snapshots import HomeSnapshots
from flows.sessions.homes.pool import Pool
from flows.sessions.lifecycle import Sessions
from flows.sessions.snapshots.model import Snapshot
from flows.sessions.snapshots.records import SnapshotRecords
from flows.sessions.store import Store
from tests.support.killing import BEFORE_AND_AFTER, NAME, DeadlyJournal, Scene, check_settled, in_smallest_pool
from tests.support.machine import RegistryServer
from tests.support.moving import manifest
from tests.support.pools import fill, make_room
from tests.support.processes import in_a_process
from tests.support.variants import LIGHT, light
from tests.support.waiting import some_long

SMALL = 2_000  # files whose owner is written anew in a clone
FORWARD = [StepName.snapshot, StepName.revert, StepName.start, StepName.clean]
BACKWARD = [StepName.reinstate, StepName.revive, StepName.forget]
TAKING = [(HomeSnapshots, "copy"), (HomeSnapshots, "note"), (SnapshotRecords, "complete")]
# A call finds what the one before it has left, so a kill before it tells little that a kill after that one did not.
AFTER_AND_BEFORE = [
    pytest.param(False, id="before", marks=pytest.mark.long),
    pytest.param(True, id="after"),
]
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


class FillingJournal(DeadlyJournal):
    """Fills the pool before the step at which its process is killed."""

    def __init__(self, settings: Settings, step: str, phase: Phase) -> None:
        super().__init__(settings, step, phase)
        self._pool = Pool(settings)

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        if (entry.step, entry.phase) == (self._deadly[0], Phase.intent):
            fill(self._pool, 0)
        super().write(held, move, entry, also)


def home_of(scene: Scene) -> object:
    return manifest(scene.sessions.store.session(NAME).home)


def killed(work: Callable[[], object]) -> None:
    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def go_back_until_killed(scene: Scene, then: Snapshot, image: str, step: str, phase: Phase) -> None:
    """A step that the full pool lets fail has no outcome before which it could be killed: then all is undone."""
    decision = Decision(NAME, Action.migrate, scene.sessions.store.session(NAME).image, image, agreed=True)

    def work() -> None:
        journal = FillingJournal(scene.settings, step, phase)
        MoveExecutor(scene.settings, Sessions.open(scene.settings), journal).carry_out(decision, back_to=then.id)

    process = in_a_process(work)
    process.join()
    if (process.exitcode, phase) == (0, Phase.done):
        last = scene.journal.latest()[NAME]
        assert last.state is State.rolled_back, last.reason
        assert Phase.failed in {entry.phase for entry in scene.journal.entries(last) if entry.step == step}
    else:
        assert process.exitcode == -signal.SIGKILL


def recovered(scene: Scene) -> None:
    """Take up what is unfinished, whether or not the full pool lets it be ended."""

    def work() -> None:
        try:
            recover_all(MoveExecutor.open(scene.settings))
        except NotRecovered:
            return

    process = in_a_process(work)
    process.join()
    assert process.exitcode == 0


def contents(scene: Scene) -> list[object]:
    """The home, and all snapshots of it that a person can go back to."""
    session = scene.sessions.store.session(NAME)
    taken = snapshot_actions.all_of(scene.sessions, session)
    return [home_of(scene), *(manifest(scene.sessions.homes.snapshot_place(NAME, one.id)) for one in taken)]


def check(scene: Scene, *expected: State) -> None:
    """The move has settled, and homes that it took away are deleted."""
    check_settled(scene, *expected)
    removed = Pool(scene.settings).folder / "removed"
    assert not removed.exists() or not list(removed.iterdir())


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", some_long(FORWARD, short=StepName.revert))
def test_a_rollback(scene: Scene, pool: Pool, then: Snapshot, step: StepName, phase: Phase) -> None:
    before, earlier = home_of(scene), manifest(scene.sessions.homes.snapshot_place(NAME, then.id))
    go_back_until_killed(scene, then, scene.sessions.store.session(NAME).image, step, phase)
    recovered(scene)
    assert home_of(scene) in (before, earlier)
    make_room(pool)
    recovered(scene)
    check(scene, State.cleaned, State.rolled_back)
    assert home_of(scene) == (earlier if scene.journal.latest()[NAME].state is State.cleaned else before)
    there = contents(scene)
    assert before in there and earlier in there


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", some_long(BACKWARD, short=StepName.reinstate))
def test_a_rollback_that_is_undone(scene: Scene, pool: Pool, then: Snapshot, step: StepName, phase: Phase) -> None:
    """The image spoils the home that it gets, and ends at once."""
    before = home_of(scene)
    go_back_until_killed(scene, then, scene.bad, step, phase)
    recovered(scene)
    make_room(pool)
    recovered(scene)
    check(scene, State.rolled_back)
    assert home_of(scene) == before
    assert snapshot_actions.all_of(scene.sessions, scene.sessions.store.session(NAME)) == (then,)


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


@pytest.mark.parametrize("after", AFTER_AND_BEFORE)
@pytest.mark.parametrize(("owner", "name"), TAKING, ids=[name for _, name in TAKING])
def test_a_snapshot(scene: Scene, pool: Pool, then: Snapshot, owner: object, name: str, after: bool) -> None:
    before, earlier = home_of(scene), manifest(scene.sessions.homes.snapshot_place(NAME, then.id))

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
    assert manifest(scene.sessions.homes.snapshot_place(NAME, more.id)) == before and earlier in contents(scene)


@pytest.mark.parametrize("after", AFTER_AND_BEFORE)
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
    if there and folder_of(there[0].home).exists():  # it was whole
        files = manifest(there[0].home)
        assert files.keys() == manifest(scene.sessions.homes.snapshot_place(NAME, then.id)).keys()
        assert {entry[1] for entry in files.values()} == {there[0].uid}
        scene.sessions.remove("ada2", purge=True)
    assert scene.sessions.store.find("ada2") is None and not scene.sessions.store.has_home("ada2")
    assert scene.sessions.homes.drafts() == () and not folder_of(scene.sessions.homes.home_of("ada2")).exists()
    make_room(pool)
    clone(scene.settings, NAME, Wish("ada2", snapshot="then"), "ada")
    scene.sessions.remove("ada2", purge=True)
    assert home_of(scene) == before
