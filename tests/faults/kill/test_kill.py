"""The migrating process is killed (SIGKILL, its child programs not) around and during every side effect.

Afterwards a new process resumes. After any kill the session runs, healthy, on its old or its new image, with the home
that it had; no container, snapshot or program is left over; the journal has no gap.
"""

from __future__ import annotations

import pytest

from flows.core.programs.process_records import ProcessId
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Phase, unsettled
from flows.migrations.move_steps import OF_EVERY_MOVE, State
from tests.support.killing import (
    BEFORE_AND_AFTER,
    NAME,
    Scene,
    check,
    home_of,
    kill,
    move_until_killed,
    resume,
    resume_until_killed,
    running,
)
from tests.support.moving import to
from tests.support.processes import in_a_process
from tests.support.waiting import some_long, wait_until

FORWARD = [step.name for step in OF_EVERY_MOVE]
BACKWARD = [step.undo for step in reversed(OF_EVERY_MOVE) if step.undo]
# Those that run programs; `stop`, `commit` and `answer` do without, or run none that change something.
PROGRAMS = ["pull", "create", "copy", "snapshot", "start", "clean"]
# A step may be over between two looks at it.
_MOVES = 10


@pytest.mark.parametrize("phase", BEFORE_AND_AFTER)
@pytest.mark.parametrize("step", some_long(FORWARD, short="start"))
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
    for _ in range(_MOVES):
        home, image = home_of(scene), scene.other
        decision = to(scene.sessions, NAME, image)
        process = in_a_process(lambda decision=decision: MoveExecutor.open(scene.settings).carry_out(decision))
        wait_until(lambda process=process: programs(scene, step) or not process.is_alive())
        kill(process)
        if scene.journal.unfinished():
            break
    assert scene.journal.unfinished(), f"the programs of {step} were over between two looks in each of {_MOVES} moves"
    resume(scene.settings)
    check(scene, State.cleaned, image, home)


def programs(scene: Scene, step: str) -> tuple[ProcessId, ...]:
    """The programs of this step that run now."""
    move = scene.journal.latest().get(NAME)
    return running(scene, NAME) if move and unsettled(scene.journal.entries(move)) == step else ()


@pytest.mark.long
def test_killed_again_and_again(scene: Scene) -> None:
    """Every recovery is killed in its turn, one side effect further on."""
    home, image = home_of(scene), scene.other
    move_until_killed(scene.settings, to(scene.sessions, NAME, image), FORWARD[0], Phase.done)
    for step in FORWARD[1:]:
        resume_until_killed(scene, step)
    resume(scene.settings)
    check(scene, State.cleaned, image, home)
