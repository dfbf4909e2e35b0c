"""The steps of a move that lead to the new image, in their order; see `move.STEPS`.

Every one of them can be done again: it looks at what is there and does what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial

from flows.compatibility.changes import hand_made
from flows.compatibility.replay import replay
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.settings.policy import SessionPolicy
from flows.core.waiting import rest
from flows.images.registry_errors import NoAnswer
from flows.migrations.move import Consent, Entry, Move
from flows.migrations.move_steps import StepName
from flows.migrations.notifications.notice import first_told
from flows.migrations.planning.move_terms import frozen, objection
from flows.migrations.planning.policies import policies
from flows.migrations.planning.rollout import Candidate, ImageKey, PlanInput, Reason
from flows.migrations.rehearsals.rehearsal import CELL, CELL_SAYS, TooSlow, rehearse
from flows.migrations.results import NOTHING, Deferred, Outcome, Unproven
from flows.migrations.rollouts.foreign_builds import NOBODYS, Foreign, ForeignBuilds
from flows.migrations.steps import environments, home_snapshots, packages, previous_containers, shutdown_notice
from flows.migrations.steps.move_context import MoveContext, says_used
from flows.sessions.activity import hook
from flows.sessions.activity.probes import FINAL_PROBE, Watch
from flows.sessions.activity.seen import Seen as Look
from flows.sessions.activity.seen import work_in
from flows.sessions.activity.visit import Visit, visiting
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.homes.copying import NobodyKnows
from flows.sessions.ide import login_notice
from flows.sessions.model import Running, Session
from flows.sessions.packages.model import NoIndex
from flows.sessions.preferences import UpdatePreferences
from flows.sessions.wishes import PreferenceStore

# Which of these paths is no device that can be read and written.
_LACKS = 'for node; do { [ -c "$node" ] && [ -r "$node" ] && [ -w "$node" ]; } || echo "$node"; done'
WATCH_PAUSE_SECONDS = 1.0


class Forward:
    """The effects of the steps; each returns its entry for the journal, and raises where it can't be done."""

    def __init__(self, context: MoveContext) -> None:
        self._context, self._settings, self._sessions = context, context.settings, context.sessions
        self._watch = Watch(context.settings, context.sessions.engine)
        self._foreign = ForeignBuilds(context.settings, context.journal.database)
        self._wishes, self._history = PreferenceStore(context.journal.database), History(context.journal.database)

    def check(self, move: Move) -> Outcome:
        """Make sure that the session is as it is written down, and that there is room for its copy."""
        if any(
            container.name == move.before.container and container.made_from != move.before
            for container in self._context.containers(move.before.name)
        ):
            raise Deferred("its container differs from Refit's record of it: stop and start the session first")
        # A session that is ill already could neither be compared with its new image nor be brought back.
        if move.back_to:
            self._check_rollback(move)
        elif move.consent is not Consent.starts:
            self._sessions.wait_ready(move.before)
            self._ask_hook(move)
        if self._context.keeps_snapshots:
            self._sessions.homes.check_room(move.before)
        return NOTHING

    def _check_rollback(self, move: Move) -> None:
        """One that is ill goes back all the same: the reason may be in its home."""
        if not self._sessions.homes.has_snapshot(move.before.name, move.back_to):
            raise RefitError(
                f"There is no snapshot {move.back_to!r} of the session {move.before.name!r} any more.",
                hint=f"`refit session snapshots {move.before.name}` lists those that are there.",
            )
        if move.consent is Consent.starts:
            return
        try:
            self._sessions.wait_ready(move.before)
        except RefitError:
            return
        self._ask_hook(move)

    def pull(self, move: Move) -> Outcome:
        """Bring the new image here."""
        try:
            self._sessions.engine.pull(move.after.image)
        except NoAnswer as error:  # that is no fault of the image
            raise Deferred(f"its image can't be had just now: {error.what}") from error
        return NOTHING

    def rehearse(self, move: Move) -> Outcome:
        """The next rehearsal removes the remains of a killed one."""
        if not self._settings.migration.rehearse:
            return Outcome("the settings want none")
        if move.back_to:
            return Outcome("not rehearsed: this home was on this image")
        if move.relocates:
            return Outcome("not rehearsed: it is on this image")
        if move.consent is Consent.starts:
            return Outcome("not rehearsed: its owner waits, and nobody is in it whom its failure would disturb")
        names = self._sessions.packages.store.names(move.before.name)
        try:
            rehearsed = rehearse(self._settings, self._sessions.homes, move.after, names)
        except TooSlow as error:
            raise Deferred(f"{error.what} {error.why}") from error
        except NoIndex as error:
            raise packages.no_index(error) from error
        packages.check(self._context, move, rehearsed.missing)
        if rehearsed.failed:
            seen = "; ".join(f"{finding.check}: {finding.seen}" for finding in rehearsed.findings if not finding.passed)
            beside = " on a copy of the home" if rehearsed.with_home else ""
            raise Unproven(f"The new image didn't pass its rehearsal{beside}. {seen}")
        if rehearsed.skipped:
            return Outcome(f"not rehearsed: {rehearsed.skipped}")
        return Outcome(f"rehearsed in {rehearsed.seconds:g} s{'' if rehearsed.with_home else ', without its home'}")

    def create(self, move: Move) -> Outcome:
        """Create the new container, or take one that the session has had and that fits."""
        back = previous_containers.goes_back(move)
        if not back:
            self._sessions.engine.remove(move.after.container)  # what an interrupted attempt has left
        self._sessions.ssh.prepare(move.after)
        self._sessions.engine.create(move.after)
        made_again = Outcome("the container that it had") if back else self._replay(move)
        done = packages.replay(self._context, move)
        return replace(done, note="\n".join(filter(None, (made_again.note, done.note))))

    def _replay(self, move: Move) -> Outcome:
        """Packages that were installed by hand come along if its owner wants it; nobody waits for that yet."""
        if not self._wish(move.before.name).replay:
            return NOTHING
        if not self._sessions.engine.on_this_machine:
            return Outcome("packages that were installed by hand don't come along: nobody is root in a Pod")
        changes = hand_made(self._settings, self._sessions.engine, move.before)
        return Outcome(replay(self._settings, changes, move.after.container))

    def warm(self, move: Move) -> Outcome:
        """Its IDE is imported while the old one still runs; where that can't be, it starts only after the stop."""
        if why := self._not_warm(move.after):
            return Outcome(f"not warm: {why}")
        self._sessions.engine.warm(move.after)
        return Outcome(self._favour(move))

    def _favour(self, move: Move) -> str:
        """Let it have more of the cores than others until `clean`; why it can't, in words: it moves all the same.

        A container that the session had before stays after a rollback, and so must never have had another weight.
        """
        if previous_containers.goes_back(move):
            return ""
        try:
            self._sessions.engine.favour(move.after.container, True)
        except RefitError as error:
            return f"its CPU weight stays as it was: {error.what}"
        return ""

    def copy(self, move: Move) -> Outcome:
        """Copy the home while people work in it."""
        return home_snapshots.copy(self._context, move)

    def look(self, move: Move) -> Outcome:
        """From here on nobody comes in; an owner who has agreed, or whose deadline has come, is only told.

        The data is what is open in it, which the stop ends.
        """
        self.require_agreed(move)
        if move.consent is Consent.starts:
            return Outcome(move.consent.text)
        with visiting(self._sessions.engine, move.before) as visit:
            self._ask_hook(move, visit)
            if (
                move.consent is Consent.forced
                and not move.relocates
                and (why := frozen(self._candidate(move), self._rollout()))
            ):
                raise Deferred(why)
            ends, seen = shutdown_notice.open_in(self._settings, visit, move.before)
            if not move.consent:
                objection_to = work_in if move.back_to or move.relocates else self.objection_to(move)
                first = partial(visit.look, FINAL_PROBE)
                if why := self._watch.look_last(move.before, objection_to, first):
                    raise Deferred(why)
                return Outcome("nobody works in it", data=ends.to_json())
        shutdown_notice.warn(self._sessions, move, seen)
        with suppress(RefitError):  # then its kernels are ended by what is started only then, or by the stop
            self._sessions.prepare_stop(move.before)
        return Outcome(move.consent.text, data=ends.to_json())

    def require_agreed(self, move: Move) -> None:
        """Let no image of somebody's own recipe come that may not, or no longer, since it was planned.

        Raises:
            Deferred: the offer ended, the consent was taken back, or nobody can tell now who made the images.
        """
        foreign = self._judged(move)
        if foreign.obstacle:
            raise Deferred(foreign.obstacle.text)
        if foreign.by and self._wish(move.before.name).agreed != move.after.image:
            raise Deferred(Reason.ask.text)

    def _judged(self, move: Move) -> Foreign:
        """The judgement on the image; one that a person has chosen beside all rollouts was judged by them."""
        if move.back_to or move.relocates or move.wave is None:
            return NOBODYS
        return self._foreign.of(move.before, move.after.image)

    def objection_to(self, move: Move) -> Callable[[Look], str]:
        """The objections of a last look to the stop; the catalog is read for it, before anybody waits."""
        candidate = self._candidate(move)

        def objection_to(seen: Look) -> str:
            current = replace(candidate, seen=seen, wish=self._wish(move.before.name))
            return objection(current, move.after.image, self._rollout())

        return objection_to

    def _candidate(self, move: Move) -> Candidate:
        policy = self._policies.get((move.before.profile, move.before.release), self._settings.migration.sessions)
        events = self._history.events(session=move.before.name, kinds=(Kind.seen, Kind.withdrawn))
        noticed = first_told(events, Kind.seen).get((move.before.name, move.before.image))
        return Candidate(move.before, running=True, policy=policy, wish=self._wish(move.before.name), noticed=noticed)

    def _wish(self, session: str) -> UpdatePreferences:
        return self._wishes.of(session)

    def _rollout(self) -> PlanInput:
        return PlanInput(now(), {}, self._settings.migration, self._settings.idle_state_hours)

    def _ask_hook(self, move: Move, visit: Visit | None = None) -> None:
        """Where somebody has agreed, or the deadline has come, the hook may still save something, but not object."""
        where = visit or self._sessions.engine
        if (why := hook.ask(where, move.before, whether=not move.consent)) and not move.consent:
            raise Deferred(why)

    def stop(self, move: Move) -> Outcome:
        """Stop the session; its record stays as it is."""
        self._sessions.halt(move.before, settle=False)
        return NOTHING

    def snapshot(self, move: Move) -> Outcome:
        """Bring what has changed since the copy into the snapshot."""
        return home_snapshots.finish(self._context, move)

    def revert(self, move: Move) -> Outcome:
        """Keep the home as it is as a snapshot of the session's own, then go back to an earlier one."""
        return home_snapshots.roll_back(self._context, move)

    def start(self, move: Move) -> Outcome:
        """Start the new container."""
        # On record it is the session's all the time; a program outside sessions doesn't ask.
        if users := self._sessions.gpus.users(move.after.devices, _stopped_at(self._context.journal.entries(move))):
            raise Unproven(f"Since the session was stopped, others have taken its GPU: {', '.join(users)}.")
        self._sessions.engine.start(move.after.container)
        return Outcome(self._favour(move))

    def answer(self, move: Move) -> Outcome:
        """Of an IDE that can't say whether anybody has used it, the home is compared before anybody is let in."""
        self._sessions.wait_answering(move.after)
        changed = () if says_used(move.after) else self._context.changes(move, at_a_glance=True)
        if changed:
            raise _home_changed(changed)
        shutdown_notice.expect_pages(self._sessions, move.after, self._context.ended(move))
        self._sessions.route_traffic(move.after)
        return NOTHING

    def verify(self, move: Move) -> Outcome:
        """The home first: the cell that is executed afterwards counts as use of the server."""
        unsure = ""
        try:
            changed = self._context.changes(move) if says_used(move.after) else ()
        except NobodyKnows as error:  # that it is slow is no reason to take the session away again
            changed, unsure = self._context.changes(move, at_a_glance=True), error.what
        if changed and self._context.used(move) is not True:
            raise _home_changed(changed)
        if move.after.access.protocol == "jupyter":
            output = self._sessions.jupyter(move.after).execute(CELL)
            if output.strip() != CELL_SAYS:
                raise Unproven(f"A kernel answered {output!r} to {CELL!r}.")
        self._sessions.ssh.check(move.after)
        self._check_gpus(move.after)
        # A rollback would remove what login shells were told as well.
        if why := hook.disproof(self._sessions.engine, move.after, login_notice.LEFT):
            raise Unproven(f"In its new container, {why}.")
        self._watch_it(move.after)
        kept = self._context.keep_home(move, changed) if changed else NOTHING
        return replace(kept, note="\n".join(filter(None, (kept.note, unsure))))

    def _watch_it(self, session: Session) -> None:
        """A container that ends a while after it was ready hasn't proven itself either."""
        if not (seconds := self._settings.migration.watch_seconds):
            return
        rest(seconds, lambda: not self._context.runs(session), pause=WATCH_PAUSE_SECONDS)
        if not self._context.runs(session):
            raise Unproven(f"It ended within {seconds:g} s after it was ready.")
        self._sessions.wait_ready(session)

    def _check_gpus(self, session: Session) -> None:
        """The GPU is visible: each of its device nodes is there, and the session's user may use it."""
        nodes = sorted(self._sessions.gpus.nodes(session.devices)) if session.devices else []
        if nodes and (lacks := self._sessions.engine.execute(session.container, ["sh", "-c", _LACKS, "sh", *nodes])):
            raise Unproven(f"Its GPU can't be used in the new container: {', '.join(lacks.split())}.")

    def clean(self, move: Move) -> Outcome:
        """Remove what the move no longer needs, and tell people that the session is open again."""
        if not previous_containers.goes_back(move):  # such a one never had another weight
            self._sessions.engine.favour(move.after.container, False)
        self._part_with_former(move)
        title = shutdown_notice.title_after(move)
        lost = packages.missing_packages(self._context.journal.entries(move))
        message = shutdown_notice.reopen(self._sessions, move.after, self._context.ended(move), title, lost)
        if remade := environments.remake(self._context, move):
            message = shutdown_notice.tell(
                self._sessions, move.after, title, "\n".join(filter(None, (message, remade)))
            )
        rest = home_snapshots.settle(self._context, move)
        return replace(rest, note="\n".join(filter(None, (message, rest.note))))

    def _part_with_former(self, move: Move) -> None:
        """The old container goes, or is kept for a while; then those from before it go."""
        if not previous_containers.is_kept(move, self._settings.migration.keep_hours):
            self._sessions.engine.remove(move.before.container)
            return
        for container in self._context.containers(move.before.name):
            if (
                container.name not in (move.before.container, move.after.container)
                and container.running is Running.stopped
            ):
                self._sessions.engine.remove(container.name)

    def _not_warm(self, session: Session) -> str:
        if why := self._context.stays_cold(session):
            return why
        return self._context.no_room(self._waiting)

    def _waiting(self) -> int:
        """How many containers wait for their homes beside those of their sessions."""
        running = [each.session for each in self._sessions.engine.containers() if each.running is Running.running]
        return len(running) - len(set(running))

    @cached_property
    def _policies(self) -> Mapping[ImageKey, SessionPolicy]:
        try:
            return policies(self._settings)
        except RefitError as error:
            raise Deferred(f"its policy can't be read: {error.what}") from error

    def commit(self, _: Move) -> Outcome:
        """Nothing by itself: the executor records the session's new image in one transaction with this step's line."""
        return NOTHING


def _home_changed(paths: Sequence[str]) -> Unproven:
    return Unproven(f"The new image changed the home: {some(paths)}.")


def _stopped_at(entries: Sequence[Entry]) -> datetime:
    """When the stop of the session began."""
    return max((entry.at for entry in entries if entry.step == StepName.stop and entry.at), default=now())
