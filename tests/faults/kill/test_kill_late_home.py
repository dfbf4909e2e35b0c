"""The process that moves a session is killed or stands still; the home comes into a container that runs already."""

from __future__ import annotations

import os
import signal
from functools import partial
from multiprocessing.process import BaseProcess
from time import monotonic

import psutil
import pytest

from flows.core.database import open_database
from flows.core.leases import LEASE_SECONDS, Lease
from flows.core.settings import Settings
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Also, Journal
from flows.migrations.move import Entry, Move, Phase
from flows.migrations.move_steps import State
from flows.migrations.recovery import recover_all
from flows.sessions.lifecycle import Sessions
from tests.support.killing import (
    BEFORE_AND_AFTER,
    NAME,
    TRIES,
    Scene,
    check,
    home_of,
    move_until_killed,
    resume,
    told_of,
)
from tests.support.moving import carry_out, check_nothing_is_left, manifest, to
from tests.support.processes import in_a_process
from tests.support.waiting import some_long, wait_until

# Seconds for which a lease lasts where a run that stands still is to lose it.
LEASE = 3.0


class StillJournal(Journal):
    """Its process stands still (SIGSTOP) once it has written this intent, until somebody lets it go on."""

    def __init__(self, settings: Settings, step: str) -> None:
        super().__init__(open_database(settings.database))
        self._step = step

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        super().write(held, move, entry, also)
        if (entry.step, entry.phase) == (self._step, Phase.intent):
            os.kill(os.getpid(), signal.SIGSTOP)


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
    for _ in range(TRIES):
        executor = MoveExecutor(settings, Sessions.open(settings), StillJournal(settings, step))
        process = in_a_process(partial(executor.carry_out, decision))
        wait_until(lambda process=process: stands_still(process) or not process.is_alive())
        if process.is_alive():
            break
    assert process.is_alive(), later.journal.latest()[NAME].reason  # it may be put off, but not each time
    executor = MoveExecutor.open(settings)
    wait_until(lambda: recover_all(executor) or not later.journal.unfinished())
    lines = later.journal.entries(later.journal.latest()[NAME])
    wait_until(lambda: monotonic() > began + slept)
    assert process.pid
    os.kill(process.pid, signal.SIGCONT)
    process.join()
    assert process.exitcode == 1  # it says that it has lost its lease
    assert later.journal.entries(later.journal.latest()[NAME]) == lines
    check(later, State.cleaned, image, home)
    check_slots(later)


def stands_still(process: BaseProcess) -> bool:
    return process.is_alive() and psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


class UntoldJournal(Journal):
    """Once it has written this intent, whoever would tell Podman that the old container has ended is killed."""

    def __init__(self, scene: Scene, step: str) -> None:
        super().__init__(scene.journal.database)
        self._scene, self._step = scene, step

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        super().write(held, move, entry, also)
        if (entry.step, entry.phase) == (self._step, Phase.intent):
            os.kill(told_of(self._scene, "ConmonPid"), signal.SIGKILL)


def test_a_move_arrives_though_nobody_tells_podman_any_more_that_the_old_container_has_ended(later: Scene) -> None:
    home, image = home_of(later), later.other
    executor = MoveExecutor(later.settings, later.sessions, UntoldJournal(later, "copy"))
    result = carry_out(executor, to(later.sessions, NAME, image))
    assert result.moved, result.reason
    check_nothing_is_left(later.settings, later.sessions, later.journal, NAME)
    assert manifest(later.sessions.store.session(NAME).home, later.own) == home
    check_slots(later)


@pytest.mark.long
@pytest.mark.parametrize("phase", [Phase.intent, Phase.done])
@pytest.mark.parametrize("step", ["rewarm", "halt", "restore", "revive", "cool", "discard"])
def test_f01_killed_on_the_way_back_of_a_home_that_comes_late(later: Scene, step: str, phase: Phase) -> None:
    home, image = home_of(later), later.sessions.store.session(NAME).image
    move_until_killed(later.settings, to(later.sessions, NAME, later.bad), step, phase)
    resume(later.settings)
    check(later, State.rolled_back, image, home)
    check_slots(later)
