"""The migrating process is killed (SIGKILL, its child programs not) around and during every side effect.

Afterwards a new process resumes. Whatever it was: the session runs, healthy, on its old or its new image, with the home
that it had; no container, snapshot or program is left over; the journal has no gap.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic

import psutil
import pytest

from flows.catalog.model import Access
from flows.core import command
from flows.core.database import open_database
from flows.core.leases import LEASE_SECONDS, Lease
from flows.core.process_records import ProcessId, noted
from flows.core.settings import Settings
from flows.host import mounts, tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Also, Journal
from flows.migrations.move import Entry, Move, Phase, unsettled
from flows.migrations.move_steps import STEPS, State
from flows.migrations.planning.rollout import Decision
from flows.migrations.start_sessions import start_all
from flows.sessions.containers.walls import Walls
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import check_nothing_is_left, furnish, manifest, to
from tests.support.processes import in_a_process
from tests.support.variants import JUPYTER, LATE, LIGHT, late, light, variant
from tests.support.waiting import some_long, wait_until

NAME = "ada"
OWN = (".cache", ".ipython", ".jupyter", ".local")  # what JupyterLab and its kernels write
BEFORE_AND_AFTER = [Phase.intent, pytest.param(Phase.done, marks=pytest.mark.long)]
# How often a move is tried that may be put off before it comes to where it is to be killed.
TRIES = 3
# Seconds for which a lease lasts where a run that stands still is to lose it.
LEASE = 3.0
FORWARD = [step.name for step in STEPS]
BACKWARD = [step.undo for step in reversed(STEPS) if step.undo]
# Those that run programs; `stop`, `commit` and `answer` do without, or run none that change something.
PROGRAMS = ["pull", "create", "copy", "snapshot", "start", "clean"]


class DeadlyJournal(Journal):
    """Kills its process after it has written this intent, or before it writes this outcome."""

    def __init__(self, settings: Settings, step: str, phase: Phase) -> None:
        super().__init__(open_database(settings.database))
        self._deadly = (step, phase)

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        deadly = (entry.step, entry.phase) == self._deadly
        if deadly and entry.phase is not Phase.intent:
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(held, move, entry, also)
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, held: Lease, move: Move, entry: Entry) -> None:
        if (entry.step, entry.phase) == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        super().note(held, move, entry)


class StillJournal(Journal):
    """Its process stands still (SIGSTOP) once it has written this intent, until somebody lets it go on."""

    def __init__(self, settings: Settings, step: str) -> None:
        super().__init__(open_database(settings.database))
        self._step = step

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        super().write(held, move, entry, also)
        if (entry.step, entry.phase) == (self._step, Phase.intent):
            os.kill(os.getpid(), signal.SIGSTOP)


@dataclass(frozen=True)
class Scene:
    """The session `ada` on one of two images that work.

    Attributes:
        bad: an image that spoils the home and whose "IDE" ends at once.
        own: folders in the home that belong to the IDE.
    """

    settings: Settings
    sessions: Sessions
    journal: Journal
    good: tuple[str, str]
    bad: str
    own: tuple[str, ...] = ()

    @property
    def other(self) -> str:
        """The good image that the session is not on."""
        (image,) = {*self.good} - {self.sessions.store.session(NAME).image}
        return image


@contextmanager
def furnished(folder: Path, port: int, image: Callable[..., str], access: Access, **more: object) -> Iterator[Scene]:
    """A scene of its own; `image` makes an image of this name that runs these instructions first."""
    with private_home(folder / "home", port, stop_grace_seconds=5.0, ready_timeout_seconds=20.0, **more) as settings:
        sessions, journal = Sessions.open(settings), Journal(open_database(settings.database))
        good, bad = (image("one"), image("two")), image("bad", "echo spoiled >>project/work.py; exit 3")
        for made in (*good, bad):
            sessions.engine.pull(made)
        sessions.create(NAME, "light-minimal-deb12-py311", "2026a", good[0], access)
        try:
            furnish(sessions, NAME)
            yield Scene(settings, sessions, journal, good, bad)
        finally:
            sessions.remove(NAME, purge=True)


@pytest.fixture(scope="module")
def scene(
    registry: Registry,
    base: Built,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    image = partial(light, shared, registry, base)
    with furnished(tmp_path_factory.mktemp("faults"), registry_server.port, image, LIGHT) as scene:
        yield scene


def resume(settings: Settings) -> None:
    process = in_a_process(lambda: MoveExecutor.open(settings).resume_all())
    process.join()
    assert process.exitcode == 0


def move_until_killed(settings: Settings, decision: Decision, step: str, phase: Phase) -> None:
    """Move a session in a process that is killed there.

    On a machine that gets nothing done for a while it may be found busy, or not be seen: then it is tried again.
    """

    def work() -> None:
        MoveExecutor(settings, Sessions.open(settings), DeadlyJournal(settings, step, phase)).carry_out(decision)

    for _ in range(TRIES):
        process = in_a_process(work)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            return
        ended = Journal(open_database(settings.database)).last(decision.session)
        assert ended and ended.state is State.deferred, ended
    raise AssertionError(f"it never came to {step} {phase}: {ended.reason}")


def check(scene: Scene, expected: State, image: str, home: object) -> None:
    move = scene.journal.latest()[NAME]
    assert move.state is expected, move.reason
    assert Phase.interrupted in {entry.phase for entry in scene.journal.entries(move)}
    check_nothing_is_left(scene.settings, scene.sessions, scene.journal, NAME)
    session = scene.sessions.store.session(NAME)
    assert manifest(session.home, scene.own) == home
    assert session.image == image


def home_of(scene: Scene) -> object:
    return manifest(scene.sessions.store.session(NAME).home, scene.own)


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", some_long(FORWARD, short=("stop", "snapshot", "start", "commit")))
def test_f01_killed_on_the_way(scene: Scene, step: str, phase: Phase) -> None:
    home, image = home_of(scene), scene.other
    move_until_killed(scene.settings, to(scene.sessions, NAME, image), step, phase)
    resume(scene.settings)
    check(scene, State.cleaned, image, home)


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", some_long(BACKWARD, short="restore"))
def test_f01_killed_on_the_way_back(scene: Scene, step: str, phase: Phase) -> None:
    home, image = home_of(scene), scene.sessions.store.session(NAME).image
    move_until_killed(scene.settings, to(scene.sessions, NAME, scene.bad), step, phase)
    resume(scene.settings)
    check(scene, State.rolled_back, image, home)


@pytest.mark.parametrize("step", some_long(PROGRAMS, short="snapshot"))
def test_killed_while_a_program_of_the_step_runs(scene: Scene, step: str) -> None:
    home, image = home_of(scene), scene.other
    decision = to(scene.sessions, NAME, image)
    process = in_a_process(lambda: MoveExecutor.open(scene.settings).carry_out(decision))
    wait_until(lambda: programs(scene, step))
    kill(process)
    resume(scene.settings)
    check(scene, State.cleaned, image, home)


def programs(scene: Scene, step: str) -> tuple[ProcessId, ...]:
    """The programs of this step that run now."""
    move = scene.journal.latest().get(NAME)
    return running(scene, NAME) if move and unsettled(scene.journal.entries(move)) == step else ()


def running(scene: Scene, name: str) -> tuple[ProcessId, ...]:
    """The programs on record for a session that run now."""
    folders = (scene.settings.home / "running").glob(f"session-{name}.*")
    return tuple(process for folder in folders for process in noted(folder))


def kill(process: BaseProcess) -> None:
    """SIGKILL for the process alone: its child programs survive."""
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_killed_again_and_again(scene: Scene) -> None:
    """Every recovery is killed in its turn, one side effect further on."""
    home, image = home_of(scene), scene.other
    move_until_killed(scene.settings, to(scene.sessions, NAME, image), FORWARD[0], Phase.done)
    for step in FORWARD[1:]:
        resume_until_killed(scene, step)
    resume(scene.settings)
    check(scene, State.cleaned, image, home)


def resume_until_killed(scene: Scene, step: str) -> None:
    def work() -> None:
        journal = DeadlyJournal(scene.settings, step, Phase.done)
        MoveExecutor(scene.settings, Sessions.open(scene.settings), journal).resume_all()

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.fixture(scope="module")
def later(
    registry: Registry,
    base: Built,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """The scene with homes that come into containers that run already."""
    folder, image = tmp_path_factory.mktemp("later"), partial(late, shared, registry, base)
    with furnished(folder, registry_server.port, image, LATE, warm_memory=0.0) as scene:
        yield scene


def check_slots(scene: Scene) -> None:
    """The home is in the slot of the session's container, and there is no other slot."""
    (slot,) = (scene.settings.home / "slots").iterdir()
    session = scene.sessions.store.session(NAME)
    assert slot.name == session.container
    assert (slot / "dev").samefile(session.home)


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", some_long(("warm", "stop", "snapshot", "start", "answer", "clean"), short="start"))
def test_f01_killed_on_the_way_of_a_home_that_comes_late(later: Scene, step: str, phase: Phase) -> None:
    home, image = home_of(later), later.other
    move_until_killed(later.settings, to(later.sessions, NAME, image), step, phase)
    resume(later.settings)
    check(later, State.cleaned, image, home)
    check_slots(later)


@pytest.mark.parametrize(
    ("step", "seconds", "slept"),
    [
        ("start", LEASE, 0.0),
        *(pytest.param(step, LEASE, 0.0, marks=pytest.mark.long) for step in ("copy", "stop", "clean")),
        pytest.param("snapshot", LEASE_SECONDS, 90.0, marks=pytest.mark.long),
    ],
)
def test_f07_a_run_that_stood_still_in_mid_move_wakes_up_and_does_nothing_more(
    later: Scene, step: str, seconds: float, slept: float
) -> None:
    """As a process that was stopped for longer than its lease lasts, while another one took the session over."""
    home, image = home_of(later), later.other
    settings, began = later.settings.model_copy(update={"lease_seconds": seconds}), monotonic()
    decision = to(later.sessions, NAME, image)
    work = partial(MoveExecutor(settings, Sessions.open(settings), StillJournal(settings, step)).carry_out, decision)
    process = in_a_process(work)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    carrier = MoveExecutor.open(settings)
    wait_until(lambda: carrier.resume_all() or not later.journal.unfinished())
    lines = later.journal.entries(later.journal.latest()[NAME])
    wait_until(lambda: monotonic() > began + slept)
    assert process.pid
    os.kill(process.pid, signal.SIGCONT)
    process.join()
    assert process.exitcode == 1  # it says that it has lost its lease
    assert later.journal.entries(later.journal.latest()[NAME]) == lines
    check(later, State.cleaned, image, home)
    check_slots(later)


class UntoldJournal(Journal):
    """Once it has written this intent, whoever would tell Podman that the old container has ended is killed."""

    def __init__(self, scene: Scene, step: str) -> None:
        super().__init__(scene.journal.database)
        self._scene, self._step = scene, step

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        super().write(held, move, entry, also)
        if (entry.step, entry.phase) == (self._step, Phase.intent):
            os.kill(told_of(self._scene, "ConmonPid"), signal.SIGKILL)


def told_of(scene: Scene, pid: str) -> int:
    """A pid that Podman knows of the session's container."""
    container = scene.sessions.store.session(NAME).container
    asked = [*tools.podman(scene.settings), "container", "inspect", "--format", f"{{{{.State.{pid}}}}}", container]
    found = int(command.run(asked, root=True).stdout)
    assert found > 1
    return found


def test_a_move_arrives_though_nobody_tells_podman_any_more_that_the_old_container_has_ended(later: Scene) -> None:
    home, image = home_of(later), later.other
    carrier = MoveExecutor(later.settings, later.sessions, UntoldJournal(later, "copy"))
    result = carrier.carry_out(to(later.sessions, NAME, image))
    assert result.moved, result.reason
    check_nothing_is_left(later.settings, later.sessions, later.journal, NAME)
    assert manifest(later.sessions.store.session(NAME).home, later.own) == home
    check_slots(later)


@pytest.mark.parametrize("name", some_long(["scene", "later"], short="later"))
def test_all_comes_up_again_after_everything_was_killed(request: pytest.FixtureRequest, name: str) -> None:
    """A session of which nothing runs any more, and nobody has told Podman; its home isn't mounted either."""
    scene: Scene = request.getfixturevalue(name)
    home = home_of(scene)
    for pid in (told_of(scene, "ConmonPid"), told_of(scene, "Pid")):
        os.kill(pid, signal.SIGKILL)
    slots = scene.settings.home.resolve() / "slots"
    for place in [*mounts.mounts_below(slots)][::-1]:
        command.run(["umount", "--lazy", place], root=True)
    assert start_all(scene.settings) == {}
    check_nothing_is_left(scene.settings, scene.sessions, scene.journal, NAME)
    assert home_of(scene) == home


@pytest.mark.long
@pytest.mark.parametrize("phase", [Phase.intent, Phase.done])
@pytest.mark.parametrize("step", ["rewarm", "halt", "restore", "revive", "cool", "discard"])
def test_f01_killed_on_the_way_back_of_a_home_that_comes_late(later: Scene, step: str, phase: Phase) -> None:
    home, image = home_of(later), later.sessions.store.session(NAME).image
    move_until_killed(later.settings, to(later.sessions, NAME, later.bad), step, phase)
    resume(later.settings)
    check(later, State.rolled_back, image, home)
    check_slots(later)


@pytest.fixture
def bob(scene: Scene, registry: Registry, shared: Settings, base: Built) -> Iterator[str]:
    """A session whose main program ends by SIGKILL alone, so that stopping it takes the whole grace."""
    stubborn = light(shared, registry, base, "stubborn", before="trap '' TERM")
    yield scene.sessions.create("bob", "light-minimal-deb12-py311", "2026a", stubborn, LIGHT).name
    if "bob" in scene.sessions.store.homes():
        scene.sessions.remove("bob", purge=True)


@pytest.mark.parametrize(
    "verb",
    some_long([Sessions.start, Sessions.stop, Sessions.remove], short=Sessions.start),
    ids=lambda verb: verb.__name__,
)
def test_what_a_killed_holder_left_running_is_ended_by_the_next_verb(
    scene: Scene, bob: str, verb: Callable[[Sessions, str], object]
) -> None:
    def hold() -> None:
        with Sessions.open(scene.settings).alone(bob):
            command.run(["sleep", "300"])

    process = in_a_process(hold)
    wait_until(lambda: running(scene, bob))
    kill(process)
    left = running(scene, bob)
    assert left
    verb(scene.sessions, bob)
    assert not any(program.alive for program in left)
    expected = {Sessions.start: [Running.running], Sessions.stop: [Running.stopped], Sessions.remove: []}
    assert [container.running for container in scene.sessions.engine.containers(bob)] == expected[verb]


def test_a_session_that_is_started_after_a_killed_stop_is_not_stopped_afterwards(scene: Scene, bob: str) -> None:
    process = in_a_process(lambda: Sessions.open(scene.settings).stop(bob))
    wait_until(lambda: bob not in scene.sessions.store.wanted())
    kill(process)
    left = running(scene, bob)
    session = scene.sessions.start(bob)
    assert not any(program.alive for program in left)
    assert [container.running for container in scene.sessions.engine.containers(bob)] == [Running.running]
    scene.sessions.wait_ready(session)


def test_a_session_starts_though_a_killed_start_has_left_its_address_reserved(scene: Scene, bob: str) -> None:
    """What `podman start` leaves when it is killed while CNI sets up the network: a file that names the container."""
    asked = [
        *tools.podman(scene.settings),
        "inspect",
        "--format",
        "{{.Id}}",
        scene.sessions.show(bob).session.container,
    ]
    own = f"{command.run(asked, root=True).stdout.strip()}\r\neth0"
    files = [file for folder in Walls(scene.settings).addresses() for file in folder.glob("*.*.*.*")]
    if not (reserved := next((file for file in files if file.read_bytes() == own.encode()), None)):
        pytest.skip("this machine's network isn't CNI's")
    scene.sessions.stop(bob)
    command.run(["tee", reserved], root=True, stdin=own)
    scene.sessions.wait_ready(scene.sessions.start(bob))
    assert not reserved.exists()


@pytest.mark.parametrize("name", some_long(["scene", "later"], short="later"))
def test_a_session_starts_though_a_killed_start_has_left_it_running(request: pytest.FixtureRequest, name: str) -> None:
    """What `podman start` leaves when it is killed right after the runtime has done its part."""
    scene: Scene = request.getfixturevalue(name)
    scene.sessions.stop(NAME)
    container, podman = scene.sessions.show(NAME).session.container, tools.podman(scene.settings)
    asked = [*podman, "container", "inspect", "--format", "{{.Id}} {{.State.Status}}"]
    command.run([*podman, "init", container], root=True)
    full, status = command.run([*asked, container], root=True).stdout.split()
    command.run([tools.facts(scene.settings).runtime, "start", full], root=True)
    assert status == "initialized"
    scene.sessions.wait_ready(scene.sessions.start(NAME))
    assert scene.sessions.execute(NAME, ["cat", "project/work.py"])  # it has its home


@pytest.fixture(scope="module")
def lab(
    registry: Registry,
    jupyter_image: str,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """The scene with real JupyterLabs in which somebody has worked."""
    folder = tmp_path_factory.mktemp("lab") / "home"
    with private_home(folder, registry_server.port, stop_grace_seconds=10.0) as settings:
        sessions, journal = Sessions.open(settings), Journal(open_database(settings.database))
        other = variant(shared, registry, jupyter_image, shared.repository, "the next")
        spoils = ["sh", "-c", "echo spoiled >>project/work.py; exit 3"]
        bad = variant(shared, registry, jupyter_image, shared.repository, "bad", spoils)
        session = sessions.create(NAME, "jupyter-minimal-deb12-py311", "2026a", jupyter_image, JUPYTER)
        try:
            furnish(sessions, NAME)
            sessions.jupyter(session).write_notebook("work.ipynb", ["6 * 7"])
            sessions.jupyter(session).execute("open('from-a-kernel', 'w').write('kept')")
            yield Scene(settings, sessions, journal, (jupyter_image, other), bad, OWN)
        finally:
            sessions.remove(NAME, purge=True)


@pytest.mark.long
def test_jupyterlab_arrives_though_its_move_is_killed_twice(lab: Scene) -> None:
    home, image = home_of(lab), lab.other
    move_until_killed(lab.settings, to(lab.sessions, NAME, image), "snapshot", Phase.intent)
    resume_until_killed(lab, "verify")  # a cell was executed, and nobody has written that down
    resume(lab.settings)
    check(lab, State.cleaned, image, home)
    jupyter = lab.sessions.jupyter(lab.sessions.store.session(NAME))
    assert jupyter.execute("print(open('from-a-kernel').read())") == "kept\n"


@pytest.mark.long
def test_jupyterlab_comes_back_though_its_way_back_is_killed_twice(lab: Scene) -> None:
    home, image = home_of(lab), lab.sessions.store.session(NAME).image
    move_until_killed(lab.settings, to(lab.sessions, NAME, lab.bad), "restore", Phase.intent)
    resume_until_killed(lab, "revive")
    resume(lab.settings)
    check(lab, State.rolled_back, image, home)
