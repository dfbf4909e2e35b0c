"""Each step of a move, and what undoes it, with its effect: held against the table of the state machine at import."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flows.core.settings import Settings
from flows.migrations.journal import Journal
from flows.migrations.move import Move
from flows.migrations.move_steps import StepName, may_say, require_complete
from flows.migrations.results import Outcome
from flows.migrations.steps.compensations import Compensations
from flows.migrations.steps.forward import Forward
from flows.migrations.steps.move_context import MoveContext
from flows.migrations.steps.others import OthersSteps
from flows.sessions.lifecycle import Sessions

_FORWARD: Mapping[StepName, Callable[[Forward, Move], Outcome]] = {
    StepName.check: Forward.check,
    StepName.pull: Forward.pull,
    StepName.rehearse: Forward.rehearse,
    StepName.create: Forward.create,
    StepName.warm: Forward.warm,
    StepName.copy: Forward.copy,
    StepName.look: Forward.look,
    StepName.stop: Forward.stop,
    StepName.snapshot: Forward.snapshot,
    StepName.revert: Forward.revert,
    StepName.start: Forward.start,
    StepName.answer: Forward.answer,
    StepName.verify: Forward.verify,
    StepName.commit: Forward.commit,
    StepName.clean: Forward.clean,
}
_BACK: Mapping[StepName, Callable[[Compensations, Move], Outcome]] = {
    StepName.discard: Compensations.discard,
    StepName.cool: Compensations.cool,
    StepName.forget: Compensations.forget,
    StepName.reopen: Compensations.reopen,
    StepName.revive: Compensations.revive,
    StepName.restore: Compensations.restore,
    StepName.reinstate: Compensations.reinstate,
    StepName.halt: Compensations.halt,
    StepName.rewarm: Compensations.rewarm,
}
require_complete(_FORWARD.keys() | _BACK.keys())


class Steps:
    """The effects of a move's steps.

    Attributes:
        context: the settings, sessions and records that they share.
    """

    def __init__(self, settings: Settings, sessions: Sessions, journal: Journal) -> None:
        self.context = MoveContext(settings, sessions, journal)
        self._forward, self._back = Forward(self.context), Compensations(self.context)
        self._of_others = OthersSteps(self.context, self._forward)

    def perform(self, name: StepName, move: Move) -> Outcome:
        """Do a step, or undo one; returns what its line in the journal says.

        Raises:
            Deferred: the session isn't to be moved just now.
            Unproven: the session runs on its new image, but not as it should.
            RefitError: the step could not be done.
            TypeError: it says something for later decisions that it isn't known to say.
        """
        if move.before.owned_by:
            return self._of_others.perform(name, move)
        forward = _FORWARD.get(name)
        outcome = forward(self._forward, move) if forward else _BACK[name](self._back, move)
        if not may_say(name, outcome.code):
            raise TypeError(f"the step {name} isn't known to say {outcome.code}")
        return outcome
