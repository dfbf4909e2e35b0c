"""Moves whose process is killed at a step, and what must hold afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.leases import Lease
from flows.core.programs import command
from flows.core.programs.process_records import ProcessId, noted
from flows.core.settings import Settings
from flows.host import tools
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Also, Journal
from flows.migrations.move import Entry, Move, Phase
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Decision
from flows.migrations.recovery import recover_all
from flows.sessions.lifecycle import Sessions
from tests.support.machine import private_home
from tests.support.moving import check_no_gap, check_nothing_is_left, furnish, manifest
from tests.support.pools import smallest_pool
from tests.support.processes import in_a_process

NAME = "ada"
BEFORE_AND_AFTER = [Phase.intent, pytest.param(Phase.done, marks=pytest.mark.long)]
# How often a move is tried that may be put off before it comes to where it is to be killed.
TRIES = 3


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


@contextmanager
def in_smallest_pool(folder: Path, port: int, image: Callable[..., str], access: Access, files: int) -> Iterator[Scene]:
    """A scene in a pool that is soon full; so many small files in its home each need their owner written in a clone."""
    with smallest_pool(folder / "home"), furnished(folder, port, image, access) as scene:
        script = f"mkdir small && cd small && for one in $(seq {files}); do echo $one >$one; done"
        scene.sessions.execute(NAME, ["sh", "-c", script])
        yield scene


def resume(settings: Settings) -> None:
    process = in_a_process(lambda: recover_all(MoveExecutor.open(settings)))
    process.join()
    assert process.exitcode == 0


def move_until_killed(settings: Settings, decision: Decision, step: str, phase: Phase, back_to: str = "") -> None:
    """Move a session in a process that is killed there.

    On a machine that gets nothing done for a while it may be found busy, or not be seen: then it is tried again.
    """

    def work() -> None:
        executor = MoveExecutor(settings, Sessions.open(settings), DeadlyJournal(settings, step, phase))
        executor.carry_out(decision, back_to=back_to)

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


def check_settled(scene: Scene, *expected: State) -> None:
    """Its last move ended in one of these states, with no gap in its history, and it runs as its record says."""
    move = scene.journal.latest()[NAME]
    assert move.state in expected, move.reason
    check_no_gap(scene.journal.entries(move))
    session = scene.sessions.store.session(NAME)
    (container,) = scene.sessions.engine.containers(NAME)
    assert container.made_from == session
    scene.sessions.wait_ready(session)
    assert not scene.journal.unfinished()


def home_of(scene: Scene) -> object:
    return manifest(scene.sessions.store.session(NAME).home, scene.own)


def running(scene: Scene, name: str) -> tuple[ProcessId, ...]:
    """The programs on record for a session that run now."""
    folders = (scene.settings.home / "running").glob(f"session-{name}.*")
    return tuple(process for folder in folders for process in noted(folder))


def kill(process: BaseProcess) -> None:
    """SIGKILL for the process alone: its child programs survive. It may have ended already."""
    process.kill()
    process.join()


def resume_until_killed(scene: Scene, step: str) -> None:
    def work() -> None:
        journal = DeadlyJournal(scene.settings, step, Phase.done)
        recover_all(MoveExecutor(scene.settings, Sessions.open(scene.settings), journal))

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def told_of(scene: Scene, pid: str) -> int:
    """A pid that Podman knows of the session's container."""
    container = scene.sessions.store.session(NAME).container
    asked = [*tools.podman(scene.settings), "container", "inspect", "--format", f"{{{{.State.{pid}}}}}", container]
    result = int(command.run(asked, root=True).stdout)
    assert result > 1
    return result
