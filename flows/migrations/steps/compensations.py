"""The compensations of a move: steps that undo it until the session is on its old image again; see `move.STEPS`.

Every one of them can be done again: it looks at what is there and does what is missing.
"""

from __future__ import annotations

from contextlib import suppress

from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.migrations.move import Entry, Move, Phase, has_code
from flows.migrations.move_steps import Code, StepName
from flows.migrations.results import NOTHING, Outcome
from flows.migrations.steps import home_snapshots, previous_containers, shutdown_notice, unattended
from flows.migrations.steps.move_context import NO_SNAPSHOT, MoveContext
from flows.sessions.homes.copying import NobodyKnows
from flows.sessions.ide import login_notice
from flows.sessions.model import Running
from flows.sessions.snapshots.model import Kind

# On the way back somebody waits: so long a failed container may take to say whether anybody has used it, and, where
# nobody has and there is nothing to be saved, to end.
SAYS_SECONDS, UNUSED_GRACE = 3.0, 2.0


class Compensations:
    """The compensating actions of a move's steps; each returns its entry for the journal."""

    def __init__(self, context: MoveContext) -> None:
        self._context, self._settings, self._sessions = context, context.settings, context.sessions

    def rewarm(self, move: Move) -> Outcome:
        """The old IDE is imported while the new one is ended and the home brought back; it gets that in `revive`."""
        try:
            # The container that failed doesn't count: it waits for nothing more.
            others = move.before.devices != move.after.devices
            if why := self._context.stays_cold(move.before, after_other=others) or self._context.no_room(lambda: 0):
                return Outcome(f"not warm: {why}")
            if self._sessions.engine.create(move.before).running is not Running.running:
                self._sessions.engine.warm(move.before, wait=False)
        except RefitError as error:  # it is started again when the home is there
            return Outcome(f"not warm: {error.what}")
        return NOTHING

    def halt(self, move: Move) -> Outcome:
        """End the new container; briefly, where nobody has used it."""
        alone = unattended.alone(self._context.journal.entries(move), self._context.used(move, SAYS_SECONDS))
        grace = self._settings.stop_grace_seconds
        with self._sessions.drain(move.after):  # for the rest of its end `cool` waits, when the old one is back
            self._sessions.engine.stop(move.after.container, min(grace, UNUSED_GRACE) if alone else grace, settle=False)
        return Outcome("nobody has used the new container", Code.unused) if alone else NOTHING

    def restore(self, move: Move) -> Outcome:
        """Undo what the new image did to the home; changes that may be a person's are never undone."""
        if not self._context.keeps_snapshots:
            return Outcome(NO_SNAPSHOT)
        try:
            changed = self._context.changes(move)
        except NobodyKnows as error:  # somebody waits, and to bring it back doesn't take that long
            changed = (error.what,)
        if not changed:
            return NOTHING
        alone = has_code(self._context.journal.entries(move), Code.unused)
        if not alone or self._context.runs(move.before):
            return self._context.keep_home(move, changed)
        self._sessions.homes.restore(move.before, move.id)
        return Outcome(f"restored: {some(changed)}")

    def reinstate(self, move: Move) -> Outcome:
        """Let the home be again what it was at the stop, unless somebody may have worked in what it went back to."""
        runs, entries = self._context.runs(move.before), self._context.journal.entries(move)
        started = any(entry.step == StepName.start for entry in entries)
        if runs or (started and not has_code(entries, Code.unused)):
            try:
                changed = self._context.changes(move)
            except NobodyKnows as error:
                changed = (error.what,)
            if runs and not changed:
                changed = ("its old container was started by somebody else, with the home of the snapshot",)
            if changed:
                home_snapshots.keep(self._context, move, Kind.safety)
                return self._context.keep_home(move, changed)
        self._sessions.homes.restore(move.before, move.id)
        return Outcome("the home is as it was at the stop")

    def revive(self, move: Move) -> Outcome:
        """Bring the old container back, and wait until it is ready."""
        self._sessions.engine.create(move.before)
        self._sessions.engine.start(move.before.container)
        stopped = Entry(StepName.stop, Phase.done) in self._context.journal.entries(move)
        if not stopped:
            self.reopen(move)  # it may never have ended; one that was started anew is open
        self._sessions.wait_ready(move.before)
        if not stopped:
            return NOTHING
        with suppress(RefitError):
            login_notice.leave(self._sessions.engine, move.before, "")
        title = f"The session {move.before.name} has the image again that it had"
        return Outcome(shutdown_notice.reopen(self._sessions, move.before, self._context.ended(move), title))

    def reopen(self, move: Move) -> Outcome:
        """Let people in again."""
        if self._context.runs(move.before):
            self._sessions.engine.allow_ingress(move.before.container)
        return NOTHING

    def forget(self, move: Move) -> Outcome:
        """Remove the snapshot, unless the home has to be kept with it."""
        return home_snapshots.forget(self._context, move)

    def cool(self, move: Move) -> Outcome:
        """Wait for the end of the new container."""
        self._sessions.engine.stop(move.after.container, self._settings.stop_grace_seconds)
        return NOTHING

    def discard(self, move: Move) -> Outcome:
        """Remove the new container, unless it is one that the session had before."""
        if not previous_containers.goes_back(move):
            self._sessions.engine.remove(move.after.container)
        return NOTHING
