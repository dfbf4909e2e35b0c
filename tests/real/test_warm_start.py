"""Homes that come into containers that run already, on real Podman."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.core import fence
from flows.core.database import open_database
from flows.core.programs import command, process_records
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import Phase
from flows.migrations.move_steps import State
from flows.migrations.results import Result
from flows.migrations.snapshots import snapshot_schedule
from flows.migrations.steps.previous_containers import clear
from flows.sessions.containers.warm_start import NAME as HOME
from flows.sessions.containers.warm_start import Slots, _bind, _unbind
from flows.sessions.lifecycle import Sessions
from flows.sessions.snapshots.model import Kind
from flows.sessions.snapshots.records import SnapshotRecords
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import carry_out, check_nothing_is_left, furnish, manifest, to
from tests.support.variants import JUPYTER, LATE, late, variant
from tests.support.waiting import wait_until

NAME = "lea"


@dataclass(frozen=True)
class Scene:
    """A session whose home comes later, and images that it can move to."""

    settings: Settings
    sessions: Sessions
    old: str
    new: str
    bad: str

    @property
    def home(self) -> dict[str, tuple[object, ...]]:
        return manifest(self.settings.home / "homes" / NAME)

    @property
    def slots(self) -> list[str]:
        """Those in which a home is; the others are empty."""
        slots = [slot for slot in (self.settings.home / "slots").iterdir() if (slot / HOME).stat().st_uid != 0]
        return sorted(slot.name for slot in slots)

    def podman(self, *words: str) -> None:
        command.run([*tools.podman(self.settings), *words], root=True)

    def move(self, image: str) -> Result:
        return carry_out(MoveExecutor.open(self.settings), to(self.sessions, NAME, image))

    def notes(self) -> dict[str, str]:
        journal = Journal(open_database(self.settings.database))
        entries = journal.entries(journal.latest()[NAME])
        return {entry.step: entry.note for entry in entries if entry.phase is Phase.done}


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("slots") / "home"
    with private_home(
        folder, registry_server.port, stop_grace_seconds=5.0, ready_timeout_seconds=60.0, warm_memory=0.0
    ) as settings:
        yield settings


@pytest.fixture
def scene(settings: Settings, registry: Registry, shared: Settings, base: Built) -> Iterator[Scene]:
    sessions = Sessions.open(settings)
    images = [late(shared, registry, base, name) for name in ("late", "later")]
    bad = late(shared, registry, base, "too late", "echo spoiled >>project/work.py; exit 3")
    sessions.create(NAME, "light-minimal-deb12-py311", "2026a", images[0], LATE)
    try:
        furnish(sessions, NAME)
        yield Scene(settings, sessions, images[0], images[1], bad)
    finally:
        sessions.remove(NAME, purge=True)


def test_a_home_moves_into_a_container_that_waits_for_it(scene: Scene) -> None:
    home = scene.home
    result = scene.move(scene.new)
    assert result.moved, result.reason
    assert scene.notes()["warm"] == ""  # it was, while the old one ran
    check_nothing_is_left(scene.settings, scene.sessions, Journal(open_database(scene.settings.database)), NAME)
    assert (scene.home, scene.slots) == (home, [f"refit-{NAME}-2"])
    assert scene.sessions.execute(NAME, ["cat", "project/a folder/data.csv"]) == "data\n"
    assert not (scene.settings.home / "slots" / f"refit-{NAME}-1").exists()


def test_who_goes_back_is_in_the_container_that_they_had_with_what_was_installed_there(scene: Scene) -> None:
    first, home = scene.sessions.store.session(NAME).container, scene.home
    scene.podman("exec", "--user", "0", first, "sh", "-c", "echo by hand >/usr/local/mine")
    rules = scene.settings.migration.model_copy(update={"keep_hours": 1.0})
    executor = MoveExecutor.open(scene.settings.model_copy(update={"migration": rules}))
    assert carry_out(executor, to(scene.sessions, NAME, scene.new)).moved
    second = scene.sessions.store.session(NAME).container
    assert carry_out(executor, to(scene.sessions, NAME, scene.old)).moved
    assert (scene.notes()["create"], scene.notes()["warm"]) == ("the container that it had", "")
    assert scene.sessions.execute(NAME, ["cat", "/usr/local/mine"]) == "by hand\n"
    assert (scene.home, scene.slots) == (home, [first])
    assert clear(scene.sessions, executor.journal, hours=0) == (second,)
    assert {one.kind for one in SnapshotRecords(scene.sessions.store.database).all(NAME)} == {Kind.move}
    snapshot_schedule.mind(scene.settings, scene.sessions)
    check_nothing_is_left(scene.settings, scene.sessions, executor.journal, NAME)


def test_without_the_home_nothing_goes_on_and_nobody_can_write(scene: Scene) -> None:
    container, home = scene.sessions.store.session(NAME).container, scene.home
    scene.sessions.stop(NAME)
    assert scene.slots == []
    scene.podman("start", container)
    wait_until(lambda: "refit-waits" in scene.sessions.engine.execute(container, ["ls", "/dev/shm"]))
    with pytest.raises(ProgramFailed, match=r"Read-only|Permission denied"):
        scene.sessions.engine.execute(container, ["sh", "-c", 'touch "$HOME/mine"'])
    scene.sessions.start(NAME)
    wait_until(lambda: "refit-waits" not in scene.sessions.engine.execute(container, ["ls", "/dev/shm"]))
    assert (scene.home, scene.slots) == (home, [container])


@pytest.mark.long
def test_after_a_reboot_a_container_that_somebody_else_started_gets_its_home(scene: Scene) -> None:
    container = scene.sessions.store.session(NAME).container
    scene.sessions.stop(NAME)
    command.run(["umount", scene.settings.home / "slots"], root=True)
    scene.podman("start", container)
    scene.sessions.start(NAME)
    assert scene.sessions.execute(NAME, ["cat", "project/a folder/data.csv"]) == "data\n"


def test_an_image_that_fails_with_the_home_gives_it_back_to_the_old_one_that_waits_for_it(scene: Scene) -> None:
    home = scene.home
    result = scene.move(scene.bad)
    assert result.state is State.rolled_back
    notes = scene.notes()
    assert (notes["rewarm"], notes["restore"]) == ("", "restored: changed: project/work.py")
    check_nothing_is_left(scene.settings, scene.sessions, Journal(open_database(scene.settings.database)), NAME)
    assert scene.slots == [f"refit-{NAME}-1"]
    assert scene.home == home


@pytest.mark.long
def test_where_no_container_may_wait_it_starts_after_the_stop(scene: Scene) -> None:
    careful = scene.settings.model_copy(update={"warm_containers": 0})
    result = MoveExecutor.open(careful).carry_out(to(scene.sessions, NAME, scene.new))
    assert result.moved, result.reason
    assert scene.notes()["warm"] == "not warm: 0 others wait already"
    assert scene.slots == [f"refit-{NAME}-2"]


CONFIGURED = """
mkdir -p .jupyter .local/share/jupyter/kernels/mine project
echo 'c.ServerApp.extra_services = []; open(".jupyter/configured", "w").write(__import__("os").getcwd())' \\
    >.jupyter/jupyter_server_config.py
echo '{"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "mine"}' \\
    >.local/share/jupyter/kernels/mine/kernel.json
"""


def moved_at_rest(settings: Settings, sessions: Sessions, name: str, image: str) -> bool:
    """Move a session; not yet, where it has still to do with its start."""
    result = MoveExecutor.open(settings).carry_out(to(sessions, name, image))
    assert result.state in (State.cleaned, State.deferred), result.reason
    return result.moved


@pytest.mark.long
def test_a_jupyterlab_that_was_warm_is_as_one_that_started_with_its_home(
    scene: Scene, shared: Settings, registry: Registry, jupyter_image: str
) -> None:
    settings = scene.settings.model_copy(update={"ready_timeout_seconds": 60.0})
    sessions, name = Sessions.open(settings), "lab"
    new = variant(shared, registry, jupyter_image, settings.repository, "the next")
    access = JUPYTER.model_copy(update={"late_home": True})
    sessions.create(name, "jupyter-minimal-deb12-py311", "2026a", jupyter_image, access)
    try:
        sessions.execute(name, ["sh", "-euc", CONFIGURED])
        wait_until(lambda: moved_at_rest(settings, sessions, name, new))
        entries = Journal(open_database(settings.database))
        done = {entry.step: entry.note for entry in entries.entries(entries.latest()[name])}
        assert done["warm"] == ""
        assert sessions.execute(name, ["cat", ".jupyter/configured"]) == "/home/dev"
        server = sessions.jupyter(sessions.store.session(name))
        assert server.execute("import os; os.getcwd()").strip() == "'/home/dev'"
        assert "mine" in server._send("GET", "/api/kernelspecs").json()["kernelspecs"]
    finally:
        sessions.remove(name, purge=True)


def test_no_home_comes_or_goes_any_more_for_whoever_was_taken_for_dead(tmp_path: Path) -> None:
    """In the very call: a process that has asked for the lease a moment before is late as well."""
    settings = Settings(home=tmp_path / "home")
    slots, place = Slots(settings), settings.home.resolve() / "slots" / "refit-vic-2" / HOME
    home, notes, others = tmp_path / "vic", tmp_path / "session-vic.7", tmp_path / "session-vic.8"
    for folder in (home, notes, others):
        folder.mkdir()
    slots.make("refit-vic-2")
    try:
        with fence.way_in(notes):
            process_records.end_for_good(notes)
            with pytest.raises(FileNotFoundError):
                _bind(home, place)
            with fence.way_in(others):
                _bind(home, place)
            with pytest.raises(FileNotFoundError):
                _unbind(place)
            assert place.samefile(home)
    finally:
        slots.remove("refit-vic-2")
        command.run(["umount", place.parents[1]], root=True)
    assert not place.exists()
