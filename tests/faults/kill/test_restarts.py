"""Sessions start again after everything was killed, whatever it left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from flows.core.programs import command
from flows.core.programs.process_records import ProcessId
from flows.core.settings import Settings
from flows.host import mounts, tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.start_sessions import start_all
from flows.sessions.containers.networks import SessionNetworks
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from tests.support.killing import NAME, Scene, home_of, kill, running, told_of
from tests.support.moving import check_nothing_is_left
from tests.support.processes import in_a_process
from tests.support.variants import LIGHT, light
from tests.support.waiting import some_long, wait_until


@pytest.mark.parametrize("name", some_long(["scene", "later"], short="later"))
def test_all_comes_up_again_after_everything_was_killed(request: pytest.FixtureRequest, name: str) -> None:
    """A session of which nothing runs any more, and nobody has told Podman; its home isn't mounted either."""
    scene: Scene = request.getfixturevalue(name)
    home = home_of(scene)
    killed = [told_of(scene, "ConmonPid"), told_of(scene, "Pid")]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(ProcessId.of, killed)))
    slots = scene.settings.home.resolve() / "slots"
    for place in [*mounts.mounts_below(slots)][::-1]:
        command.run(["umount", "--lazy", place], root=True)
    assert start_all(scene.settings) == {}
    check_nothing_is_left(scene.settings, scene.sessions, scene.journal, NAME)
    assert home_of(scene) == home


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
    wait_until(lambda: bob not in scene.sessions.store.intents())
    kill(process)
    left = running(scene, bob)
    session = scene.sessions.start(bob)
    assert not any(program.alive for program in left)
    assert [container.running for container in scene.sessions.engine.containers(bob)] == [Running.running]
    scene.sessions.wait_ready(session)


def test_a_session_starts_though_a_killed_start_has_left_its_address_reserved(scene: Scene, bob: str) -> None:
    """The remains of a `podman start` that is killed while CNI sets up the network: a file that names the container."""
    asked = [
        *tools.podman(scene.settings),
        "inspect",
        "--format",
        "{{.Id}}",
        scene.sessions.show(bob).session.container,
    ]
    own = f"{command.run(asked, root=True).stdout.strip()}\r\neth0"
    files = [file for folder in SessionNetworks(scene.settings).addresses() for file in folder.glob("*.*.*.*")]
    if not (reserved := next((file for file in files if file.read_bytes() == own.encode()), None)):
        pytest.skip("this machine's network isn't CNI's")
    scene.sessions.stop(bob)
    command.run(["tee", reserved], root=True, stdin=own)
    scene.sessions.wait_ready(scene.sessions.start(bob))
    assert not reserved.exists()


@pytest.mark.parametrize("name", some_long(["scene", "later"], short="later"))
def test_a_session_starts_though_a_killed_start_has_left_it_running(request: pytest.FixtureRequest, name: str) -> None:
    """The remains of a `podman start` that is killed right after the runtime has done its part."""
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
