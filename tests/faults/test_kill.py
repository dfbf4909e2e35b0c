"""The migrating process is killed (SIGKILL, its child programs not) around and during every side effect.

Afterwards a new process resumes. Whatever it was: the session runs, healthy, on its old or its new image, with the home
that it had; no container, snapshot or program is left over; the journal has no gap.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from flows.command import noted
from flows.database import Lease, open_database
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.carry import Carrier
from flows.migrations.journal import Also, Journal, Move
from flows.migrations.move import STEPS, Entry, Phase, State
from flows.migrations.plan import Decision
from flows.sessions.lifecycle import Sessions
from flows.settings import Settings
from tests.conftest import wait_until
from tests.machine import RegistryServer, private_home
from tests.real.moving import check_nothing_is_left, furnish, manifest, to
from tests.real.variants import LIGHT, light

NAME = "ada"
BEFORE_AND_AFTER = [Phase.intent, pytest.param(Phase.done, marks=pytest.mark.long)]
FORWARD = [step.name for step in STEPS]
BACKWARD = [step.undo for step in reversed(STEPS) if step.undo]
# Those that run programs; `commit` and `answer` don't run any that change something.
PROGRAMS = ["pull", "create", "copy", "stop", "snapshot", "start", "clean"]


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


@dataclass(frozen=True)
class Scene:
    """One session on one of two images that work; `bad` is an image whose "IDE" ends at once."""

    settings: Settings
    sessions: Sessions
    journal: Journal
    good: tuple[str, str]
    bad: str

    @property
    def other(self) -> str:
        """The good image that the session is not on."""
        (image,) = {*self.good} - {self.sessions.store.session(NAME).image}
        return image


@pytest.fixture(scope="module")
def scene(
    registry: Registry,
    base: Built,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("faults") / "home"
    with private_home(folder, registry_server.port, stop_grace=5.0, ready_limit=20.0) as settings:
        sessions, journal = Sessions.open(settings), Journal(open_database(settings.database))
        good = (light(shared, registry, base, "one"), light(shared, registry, base, "two"))
        bad = light(shared, registry, base, "bad", before="echo spoiled >>project/work.py; exit 3")
        for image in (*good, bad):
            sessions.engine.pull(image)
        sessions.create(NAME, "light-minimal-deb12-py311", "2026a", good[0], LIGHT)
        try:
            furnish(sessions, NAME)
            yield Scene(settings, sessions, journal, good, bad)
        finally:
            sessions.remove(NAME, purge=True)


def in_a_process(work: Callable[[], object]) -> BaseProcess:
    """A process of its own for `work`: a fork, because that starts at once."""
    process = get_context("fork").Process(target=work)
    process.start()
    return process


def resume(settings: Settings) -> None:
    process = in_a_process(lambda: Carrier.open(settings).resume_all())
    process.join()
    assert process.exitcode == 0


def move_until_killed(scene: Scene, decision: Decision, step: str, phase: Phase) -> None:
    def work() -> None:
        journal = DeadlyJournal(scene.settings, step, phase)
        Carrier(scene.settings, Sessions.open(scene.settings), journal).carry_out(decision)

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"the process never came to {step} {phase}"


def check(scene: Scene, expected: State, image: str, home: object) -> None:
    check_nothing_is_left(scene.settings, scene.sessions, scene.journal, NAME)
    session = scene.sessions.store.session(NAME)
    assert manifest(session.home) == home
    assert session.image == image
    move = scene.journal.latest()[NAME]
    assert move.state is expected
    assert Phase.interrupted in {entry.phase for entry in scene.journal.entries(move)}


def home_of(scene: Scene) -> object:
    return manifest(scene.sessions.store.session(NAME).home)


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", FORWARD)
def test_killed_on_the_way(scene: Scene, step: str, phase: Phase) -> None:
    home, image = home_of(scene), scene.other
    move_until_killed(scene, to(scene.sessions, NAME, image), step, phase)
    resume(scene.settings)
    check(scene, State.cleaned, image, home)


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", BACKWARD)
def test_killed_on_the_way_back(scene: Scene, step: str, phase: Phase) -> None:
    home, image = home_of(scene), scene.sessions.store.session(NAME).image
    move_until_killed(scene, to(scene.sessions, NAME, scene.bad), step, phase)
    resume(scene.settings)
    check(scene, State.rolled_back, image, home)


@pytest.mark.parametrize("step", PROGRAMS)
def test_killed_while_a_program_of_the_step_runs(scene: Scene, step: str) -> None:
    home, image = home_of(scene), scene.other
    decision = to(scene.sessions, NAME, image)
    process = in_a_process(lambda: Carrier.open(scene.settings).carry_out(decision))
    wait_until(lambda: programs(scene, step))
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    resume(scene.settings)
    check(scene, State.cleaned, image, home)


def programs(scene: Scene, step: str) -> list[Path]:
    """The folders of this step in which a program that runs has noted itself."""
    return [folder for folder in (scene.settings.home / "running").glob(f"*-{step}") if noted(folder)]


def test_killed_again_and_again(scene: Scene) -> None:
    """Every recovery is killed in its turn, one side effect further on."""
    home, image = home_of(scene), scene.other
    move_until_killed(scene, to(scene.sessions, NAME, image), FORWARD[0], Phase.done)
    for step in FORWARD[1:]:
        resume_until_killed(scene, step)
    resume(scene.settings)
    check(scene, State.cleaned, image, home)


def resume_until_killed(scene: Scene, step: str) -> None:
    def work() -> None:
        journal = DeadlyJournal(scene.settings, step, Phase.done)
        Carrier(scene.settings, Sessions.open(scene.settings), journal).resume_all()

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL
