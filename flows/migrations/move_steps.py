"""The steps of a move, in one table: what each reaches, what undoes it, what it may say. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a move is."""

    planned = "planned"
    preflight = "preflight"
    staged = "staged"
    locked = "locked"
    stopped = "stopped"
    snapshotted = "snapshotted"
    started = "started"
    verified = "verified"
    committed = "committed"
    cleaned = "cleaned"
    skipped = "skipped"
    deferred = "deferred"
    rolling_back = "rolling back"
    rolled_back = "rolled back"
    held = "held"


FINAL = frozenset({State.cleaned, State.skipped, State.deferred, State.rolled_back, State.held})


class StepName(StrEnum):
    """The steps of a move in their order, then what undoes them."""

    check = "check"
    pull = "pull"
    rehearse = "rehearse"
    create = "create"
    warm = "warm"
    copy = "copy"
    look = "look"
    stop = "stop"
    snapshot = "snapshot"
    revert = "revert"
    start = "start"
    answer = "answer"
    verify = "verify"
    commit = "commit"
    clean = "clean"

    discard = "discard"
    cool = "cool"
    forget = "forget"
    reopen = "reopen"
    revive = "revive"
    restore = "restore"
    reinstate = "reinstate"
    halt = "halt"
    rewarm = "rewarm"


class Code(StrEnum):
    """A fact in the journal on which later decisions rest. The note of its line says the same to people."""

    unused = "unused"  # nobody has used the new container
    home_kept = "home-kept"  # the home was changed, maybe by its user, and left so
    unwatched = "unwatched"  # the new container ran while no process of ours watched it
    unwatched_ended = "unwatched-ended"  # and it has ended since
    put_off = "put-off"  # what went wrong says nothing of the new image


@dataclass(frozen=True)
class Step:
    """One side effect of a move.

    Attributes:
        name: its name.
        reaches: the state that it leads to.
        undo: the step that undoes it; none: there is nothing to undo.
        codes: the facts for later decisions that the lines of its success, and of its undo's, may have.
    """

    name: StepName
    reaches: State
    undo: StepName | None = None
    codes: frozenset[Code] = frozenset()


STEPS = (
    Step(StepName.check, State.preflight),
    Step(StepName.pull, State.preflight),
    Step(StepName.rehearse, State.preflight),
    Step(StepName.create, State.preflight, undo=StepName.discard),
    Step(StepName.warm, State.preflight, undo=StepName.cool),
    Step(StepName.copy, State.staged, undo=StepName.forget, codes=frozenset({Code.home_kept})),
    Step(StepName.look, State.locked, undo=StepName.reopen),
    Step(StepName.stop, State.stopped, undo=StepName.revive),
    Step(StepName.snapshot, State.snapshotted, undo=StepName.restore, codes=frozenset({Code.home_kept})),
    # Of rollbacks alone.
    Step(StepName.revert, State.snapshotted, undo=StepName.reinstate, codes=frozenset({Code.home_kept})),
    Step(StepName.start, State.snapshotted, undo=StepName.halt, codes=frozenset({Code.unused})),
    Step(StepName.answer, State.started, undo=StepName.rewarm),
    Step(StepName.verify, State.verified, codes=frozenset({Code.home_kept})),
    Step(StepName.commit, State.committed),
    # The rest is only told: until it is, a killed process has left a move that isn't finished.
    Step(StepName.clean, State.committed, codes=frozenset({Code.home_kept})),
)


_BY_NAME = {name: step for step in STEPS for name in (step.name, step.undo) if name}


_LOOK, REVERT = _BY_NAME[StepName.look], _BY_NAME[StepName.revert]
OF_EVERY_MOVE = tuple(step for step in STEPS if step is not REVERT)


def require_complete(effects: Collection[str]) -> None:
    """Hold the table of steps and that of their effects against each other: a program with a gap doesn't start.

    Raises:
        TypeError: a step, or what undoes one, is in only one of them, or is there twice.
    """
    in_table = [name for step in STEPS for name in (step.name, step.undo) if name]
    if len(in_table) != len(_BY_NAME) or {*StepName} != _BY_NAME.keys() or effects != {*StepName}:
        raise TypeError(f"the table of steps and their effects differ: {sorted({*effects} ^ {*in_table, *StepName})}")


def may_say(name: StepName, code: Code | None) -> bool:
    """Whether the line of this step's success, or of this undo's, may have this code."""
    return code is None or code in _BY_NAME[name].codes
