"""The steps of the move of a session that others own: most of them are its owner's affair, and say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flows.core.errors import RefitError
from flows.core.waiting import rest
from flows.migrations.move import Move, Seen
from flows.migrations.move_steps import StepName, require_complete
from flows.migrations.results import NOTHING, Deferred, Outcome, Unproven
from flows.migrations.steps.forward import WATCH_PAUSE_SECONDS, Forward
from flows.migrations.steps.move_context import NO_SNAPSHOT, MoveContext
from flows.sessions.activity.probes import Watch
from flows.sessions.model import Running
from flows.sessions.others.model import Keeper, SomebodyElse, Stopped, owner_of


class OthersSteps:
    """The effects of the steps; each returns its entry for the journal."""

    def __init__(self, context: MoveContext, forward: Forward) -> None:
        self._context, self._settings, self._forward = context, context.settings, forward
        self._watch = Watch(context.settings, context.sessions.engine)

    def perform(self, name: StepName, move: Move) -> Outcome:
        """Do a step, or undo one; as `Steps.perform`."""
        return _EFFECTS[name](self, move)

    def _keeper(self, move: Move) -> Keeper:
        return self._context.others.of(move.before)

    def check(self, move: Move) -> Outcome:
        """Ask whether the image could be put in; a session that is ill couldn't be compared with its new image."""
        keeper = self._keeper(move)
        if move.back_to:
            raise RefitError(f"The home of {move.before.name!r} has no snapshots: it is its {keeper.kind}'s.")
        proof = keeper.check(move.before, move.after)
        keeper.prove(move.before)
        return Outcome("; ".join(filter(None, (keeper.lacks, proof))))

    def rehearse(self, move: Move) -> Outcome:
        """None: nothing of Refit's runs beside sessions of others."""
        return Outcome(f"not rehearsed: it belongs to the {owner_of(move.before)}")

    def warm(self, move: Move) -> Outcome:
        """None: its owner makes what it runs in, and only after the stop."""
        return Outcome("not warm: its owner makes what it runs in")

    def copy(self, move: Move) -> Outcome:
        """None: the home is its owner's."""
        return Outcome(NO_SNAPSHOT)

    def look(self, move: Move) -> Outcome:
        """Look once more right before the stop: such a session can't be closed meanwhile."""
        self._forward.require_agreed(move)
        if move.consent:
            return Outcome(move.consent.text)
        keeper = self._keeper(move)
        seen = self._watch.look_by(move.before, lambda: keeper.look(move.before))
        if why := self._forward.objection_to(move)(seen):
            raise Deferred(why)
        return Outcome("nobody works in it; nobody is kept from it until it stops")

    def stop(self, move: Move) -> Outcome:
        """Put the new image in, by which its owner stops what runs."""
        self._keeper(move).put(move.before, move.after)
        return NOTHING

    def start(self, move: Move) -> Outcome:
        """Wait until it runs with the new image."""
        try:
            self._keeper(move).start(move.after)
        except Stopped as error:
            raise Deferred(error.what) from error
        return NOTHING

    def answer(self, move: Move) -> Outcome:
        """Prove it; nobody lets people in here but its owner."""
        return Outcome(self._keeper(move).prove(move.after))

    def verify(self, move: Move) -> Outcome:
        """It runs on for a while, with the image that it was given."""
        keeper = self._keeper(move)

        def ended() -> bool:
            owned = keeper.find(move.after)
            return not (owned and owned.runs and owned.session.image == move.after.image)

        if seconds := self._settings.migration.watch_seconds:
            rest(seconds, ended, pause=max(WATCH_PAUSE_SECONDS, seconds / 5))
        if ended():
            raise Unproven("It doesn't run with the image that it was given any more: somebody else has changed it.")
        return NOTHING

    def revive(self, move: Move) -> Outcome:
        """Put the old image in again, and prove it; changes that others have made meanwhile stay."""
        keeper = self._keeper(move)
        try:
            keeper.put(move.after, move.before)
            keeper.start(move.before)
        except (SomebodyElse, Stopped) as error:
            return Outcome(f"left as it is: {error.what}")
        return Outcome(keeper.prove(move.before))

    def nothing(self, move: Move) -> Outcome:
        """Nothing: there is nothing of that kind."""
        return NOTHING


_OWN: Mapping[StepName, Callable[[OthersSteps, Move], Outcome]] = {
    StepName.check: OthersSteps.check,
    StepName.rehearse: OthersSteps.rehearse,
    StepName.warm: OthersSteps.warm,
    StepName.copy: OthersSteps.copy,
    StepName.look: OthersSteps.look,
    StepName.stop: OthersSteps.stop,
    StepName.start: OthersSteps.start,
    StepName.answer: OthersSteps.answer,
    StepName.verify: OthersSteps.verify,
    StepName.revive: OthersSteps.revive,
}
_ITS_OWNERS = (
    *(StepName.pull, StepName.create, StepName.snapshot, StepName.revert, StepName.commit, StepName.clean),
    *(StepName.discard, StepName.cool, StepName.forget, StepName.reopen, StepName.restore, StepName.reinstate),
    *(StepName.halt, StepName.rewarm),
)
_EFFECTS = {**_OWN, **dict.fromkeys(_ITS_OWNERS, OthersSteps.nothing)}
require_complete(_EFFECTS.keys())


def seen_of(context: MoveContext, move: Move, *, fresh: bool) -> Seen:
    """The state of the world of a move of others.

    Raises:
        RefitError: its owner can't be asked.
    """
    owned = context.others.of(move.before).find(move.before)
    if owned is None:
        return Seen(session=False, should_run=True, old=None, new=None, fresh=fresh)
    old, new = (
        Running.running if owned.runs and owned.session.image == image else Running.stopped
        for image in (move.before.image, move.after.image)
    )
    # A stop in the middle is heard by the steps: else it would be left with an image that nobody has proven.
    return Seen(session=True, should_run=True, old=old, new=new, fresh=fresh)
