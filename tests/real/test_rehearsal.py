"""Rehearsals of real containers against copies of homes, beside the session that goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.rehearsals.rehearsal import Rehearsal, TooSlow, rehearse, sweep
from flows.sessions.activity.hook import PROOF
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.inside.folder import COMMAND_INSIDE, INSIDE
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.reconfigure import put_into_pool
from tests.support import moving
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import furnish, manifest, opened, to
from tests.support.variants import JUPYTER, LIGHT, light
from tests.support.waiting import wait_until

NAME = "vera"
# Only what a rehearsal has: a variable, no network, no way to Refit, the home; and it damages what it was given.
UNHEARD = f"[ ! -e {INSIDE} ] && [ ! -e {COMMAND_INSIDE} ]"
ALONE = f'[ "$REFIT_REHEARSAL" = 1 ] && [ "$(ls /sys/class/net)" = lo ] && {UNHEARD} && rm -r ~/project && touch ~/done'
WRITES = '[ "$REFIT_REHEARSAL" = 1 ] && echo "$1" >~/asked'
# It goes well in the rehearsal, and not in the session itself.
SPOILS = '[ "$REFIT_REHEARSAL" ] || { rm -r ~/project; exit 3; }'
COMPUTES = "python3 -c 'import time\nwhile time.process_time() < 6: pass'"

# A file that a kernel reads before it listens.
SETTINGS, SLOW = ".ipython/profile_default/ipython_kernel_config.py", "import time\ntime.sleep(10)\n"


class Scene(moving.Scene):
    """A session whose home is copied."""

    def create(self, image: str, access: Access = LIGHT) -> Session:
        self.sessions.create(NAME, "light-minimal-deb12-py311", "2026a", image, access)
        furnish(self.sessions, NAME)
        return self.sessions.store.session(NAME)

    def rehearse(self, session: Session, image: str, **changed: object) -> Rehearsal:
        settings = self.settings.model_copy(update=changed)
        return rehearse(settings, self.sessions.homes, replace(session, image=image, generation=2))

    def hook(self, script: str) -> None:
        """Let the session have a hook that is asked after a move."""
        write = f"mkdir -p $(dirname {PROOF}) && cat >{PROOF} && chmod +x {PROOF}"
        self.sessions.execute(NAME, ["sh", "-euc", write], stdin=f"#!/bin/sh\n{script}\n")

    def check_nothing_is_left(self) -> None:
        listed = [*tools.podman(self.settings), "ps", "--all", "--quiet", "--filter", "name=rehearsal"]
        assert not command.run(listed, root=True).stdout
        assert not [*(self.settings.home / "rehearsals").iterdir(), *(self.settings.home / "spares").iterdir()]
        assert not list((self.settings.home / "running").iterdir())
        pool = self.sessions.homes.pool
        assert not pool.exists or not list(pool.rehearsals.iterdir())


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("rehearsals") / "home"
    more = {"stop_grace_seconds": 3.0, "ready_timeout_seconds": 20.0, "rehearsal_memory": 0.5}
    with private_home(folder, registry_server.port, **more) as settings:
        yield settings


@pytest.fixture
def scene(settings: Settings, registry: Registry, shared: Settings, base: Built) -> Iterator[Scene]:
    with opened(settings, NAME) as sessions:
        yield Scene(settings, sessions, registry, shared, base)


def test_an_image_shows_what_it_can_and_the_session_never_knows(scene: Scene) -> None:
    session = scene.create(scene.image("old"))
    scene.hook(WRITES)
    scene.sessions.execute(NAME, ["test", "-x", COMMAND_INSIDE])  # as the session itself has it
    before = manifest(session.home)
    rehearsal = scene.rehearse(session, scene.image("alone", ALONE))
    assert [finding.check for finding in rehearsal.findings if finding.passed] == [
        "start",
        "home",
        "ide",
        "hook",
        "steady",
    ]
    assert not rehearsal.failed and not rehearsal.skipped
    assert manifest(session.home) == before
    scene.sessions.wait_ready(session)
    scene.check_nothing_is_left()


@pytest.mark.long
def test_the_hook_of_a_session_has_its_word_in_a_rehearsal(scene: Scene) -> None:
    session = scene.create(scene.image("old"))
    scene.hook('echo "$1: no CUDA, $REFIT_REHEARSAL"; exit 3')
    rehearsal = scene.rehearse(session, session.image)
    assert rehearsal.failed and rehearsal.findings[-1].check == "hook"
    assert f"Its hook ~/{PROOF} ended with exit code 3: moved: no CUDA, 1." in rehearsal.findings[-1].seen
    scene.check_nothing_is_left()


@pytest.mark.long
def test_a_rehearsal_leaves_the_cores_to_sessions(scene: Scene) -> None:
    session = scene.create(scene.image("old"))
    asks = "cat /sys/fs/cgroup/cpu.weight 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.shares"
    there = int(scene.sessions.execute(NAME, ["sh", "-c", asks]))
    scene.hook(f"echo it has $({asks}) of {there}; exit 3")
    rehearsal = scene.rehearse(session, session.image)
    (here,) = re.findall(rf"it has (\d+) of {there}", rehearsal.findings[-1].seen)
    assert 4 * int(here) <= there


@pytest.mark.long
def test_a_machine_without_free_cores_is_no_fault_of_the_image(scene: Scene) -> None:
    session = scene.create(scene.image("old"))
    works, hangs = (scene.image(name, begin) for name, begin in (("works", COMPUTES), ("hangs", "sleep 900")))
    burn = [sys.executable, "-c", "while True: pass"]  # each in a session, or they would share what one gets
    burners = [subprocess.Popen(burn, start_new_session=True) for _ in range(8 * (os.cpu_count() or 1))]
    try:
        with pytest.raises(TooSlow, match="too slow"):
            scene.rehearse(session, works, ready_timeout_seconds=10.0)
        assert scene.rehearse(session, hangs, ready_timeout_seconds=10.0).failed
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert not scene.rehearse(session, works, ready_timeout_seconds=60.0).failed
    scene.check_nothing_is_left()


@pytest.mark.long
def test_an_image_that_cant_is_told_with_its_last_words(scene: Scene) -> None:
    session = scene.create(scene.image("old"))
    rehearsal = scene.rehearse(session, scene.image("ends", "echo broken >&2; exit 3"))
    assert rehearsal.failed and "broken" in rehearsal.findings[-1].seen
    scene.sessions.wait_ready(session)
    scene.check_nothing_is_left()


@pytest.mark.long
def test_jupyterlab_executes_a_cell_in_a_rehearsal(scene: Scene, jupyter_image: str) -> None:
    session = scene.create(jupyter_image, JUPYTER)
    rehearsal = scene.rehearse(session, jupyter_image, rehearsal_memory=1.0, ready_timeout_seconds=60.0)
    assert not rehearsal.failed, rehearsal.findings
    assert [finding.check for finding in rehearsal.findings] == ["start", "home", "ide", "cell", "hook", "steady"]
    scene.check_nothing_is_left()


@pytest.mark.long
def test_a_kernel_that_is_slow_to_begin_isnt_taken_for_dead(scene: Scene, jupyter_image: str) -> None:
    session = scene.create(jupyter_image, JUPYTER)
    write = f"mkdir -p $(dirname {SETTINGS}) && cat >{SETTINGS}"
    scene.sessions.execute(NAME, ["sh", "-euc", write], stdin=SLOW)
    rehearsal = scene.rehearse(session, jupyter_image, rehearsal_memory=1.0, ready_timeout_seconds=60.0)
    assert not rehearsal.failed, rehearsal.findings
    assert "cell" in {finding.check for finding in rehearsal.findings}
    scene.check_nothing_is_left()


@pytest.mark.long
@pytest.mark.parametrize(
    ("changed", "why"),
    [({"rehearsal_memory": 100_000.0}, "of memory are free"), ({"rehearsal_copy": 0.0}, "a copy may take 0 MB")],
)
def test_where_memory_or_space_is_short_there_is_no_rehearsal_and_it_says_so(
    scene: Scene, changed: dict[str, float], why: str
) -> None:
    session = scene.create(scene.image("old"))
    rehearsal = scene.rehearse(session, session.image, **changed)
    assert why in rehearsal.skipped and not rehearsal.failed and not rehearsal.findings
    scene.check_nothing_is_left()


@pytest.mark.long
def test_one_that_eats_its_memory_is_ended_and_says_so(scene: Scene) -> None:
    session = scene.create(scene.image("old"))
    eat = "python3 -c 'b = [bytearray(1 << 24) for _ in range(100)]' || exit 7"
    rehearsal = scene.rehearse(session, scene.image("eats", eat))
    assert rehearsal.failed
    scene.check_nothing_is_left()


@pytest.mark.long
def test_what_a_killed_rehearsal_has_left_is_removed_by_the_next_that_looks(scene: Scene) -> None:
    session = scene.create(scene.image("old"))
    image = scene.image("silent", "sleep 600")
    code = """
import sys
from dataclasses import replace
from pathlib import Path
from flows.migrations.rehearsals.rehearsal import rehearse
from flows.sessions.lifecycle import Sessions
from flows.core.settings import Settings
settings = Settings.model_validate_json(sys.argv[1]).model_copy(update={"home": Path(sys.argv[2])})
sessions = Sessions.open(settings)
rehearse(settings, sessions.homes, replace(sessions.store.session("vera"), image=sys.argv[3], generation=2))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, scene.settings.model_dump_json(), scene.settings.home, image],
        env={**os.environ, "REFIT_HOME": str(scene.settings.home)},
        cwd=Path(__file__).parents[2],
    )
    running = [*tools.podman(scene.settings), "ps", "--quiet", "--filter", "name=rehearsal"]
    wait_until(lambda: command.run(running, root=True).stdout and process.poll() is None)
    [copy] = (scene.settings.home / "spares").glob("*/home")
    assert copy.is_dir() and oct(copy.parent.stat().st_mode)[-3:] == "700"
    assert sweep(scene.settings, scene.sessions.homes) == ()  # it is under way
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sweep(scene.settings, scene.sessions.homes) == (NAME,)
    scene.check_nothing_is_left()
    scene.sessions.wait_ready(session)


@pytest.mark.long
def test_a_session_goes_on_with_its_home_in_the_pool(
    registry_server: RegistryServer, tmp_path: Path, registry: Registry, shared: Settings, base: Built
) -> None:
    more = {"stop_grace_seconds": 3.0, "ready_timeout_seconds": 20.0, "rehearsal_memory": 0.5}
    with private_home(tmp_path / "home", registry_server.port, **more) as settings:
        sessions = Sessions.open(settings)
        session = Scene(settings, sessions, registry, shared, base).create(light(shared, registry, base, "old"))
        Pool(settings).create(LEAST)
        sessions = Sessions.open(settings)
        with pytest.raises(RefitError, match="runs"):
            put_into_pool(sessions, sessions.homes, NAME)
        sessions.stop(NAME)
        before = manifest(session.home)
        for _ in range(2):
            moved = put_into_pool(sessions, sessions.homes, NAME)
            assert moved.home in sessions.homes.pool and manifest(moved.home) == before
        assert not folder_of(session.home).exists()
        assert sessions.start(NAME) == moved and sessions.execute(NAME, ["ls", "project"])

        executor = MoveExecutor.open(settings)
        for name, before_start, ended in (("new", "true", State.cleaned), ("spoils", SPOILS, State.rolled_back)):
            image = light(shared, registry, base, name, before_start)
            assert executor.carry_out(to(sessions, NAME, image)).state is ended
            assert manifest(moved.home) == before
        assert not list((sessions.homes.pool.snapshots / NAME).iterdir())
        sessions.remove(NAME, purge=True)
        assert not folder_of(moved.home).exists()


@pytest.mark.long
def test_in_the_pool_the_copy_is_a_snapshot(
    registry_server: RegistryServer, tmp_path: Path, registry: Registry, shared: Settings, base: Built
) -> None:
    with private_home(tmp_path / "home", registry_server.port, rehearsal_memory=0.5, rehearsal_copy=0.0) as settings:
        Pool(settings).create(LEAST)
        sessions = Sessions.open(settings)
        scene = Scene(settings, sessions, registry, shared, base)
        session = scene.create(scene.image("old"))
        assert folder_of(session.home) in LocalHomes(settings).pool
        before = manifest(session.home)
        rehearsal = scene.rehearse(session, scene.image("alone", ALONE))
        assert not rehearsal.failed and not rehearsal.skipped
        assert manifest(session.home) == before
        scene.check_nothing_is_left()
        sessions.remove(NAME, purge=True)
        assert not list(sessions.homes.pool.homes.iterdir())
