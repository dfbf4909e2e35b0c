"""What the steps of a move do: the side effects behind those of `move`, and behind the way back.

Every effect is made so that it can be done again: it looks at what is there and does what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property

import psutil

from flows.compatibility.changes import hand_made
from flows.compatibility.replay import replay
from flows.core import fence
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.policy import SessionPolicy
from flows.core.settings import Settings
from flows.images.registry_errors import NoAnswer
from flows.migrations import previous_containers, shutdown_notice, unattended
from flows.migrations.journal import Journal
from flows.migrations.move import Code, Consent, Entry, Move, Phase, has_code
from flows.migrations.notifications.notice import first_told
from flows.migrations.planning.consent import frozen, objection
from flows.migrations.planning.policies import policies
from flows.migrations.planning.rollout import Candidate, ImageKey, PlanInput
from flows.migrations.rehearsal import CELL, CELL_SAYS, TooSlow, rehearse
from flows.migrations.results import Deferred, Outcome, Unproven
from flows.sessions.activity import hook
from flows.sessions.activity.probes import Watch
from flows.sessions.activity.seen import Seen as Look
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.homes.copying import NobodyKnows
from flows.sessions.ide.reopening import Opened
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running, Session
from flows.sessions.preferences import UpdatePreferences
from flows.sessions.wishes import PreferenceStore

# Which of these paths is no device that can be read and written.
_LACKS = 'for node; do { [ -c "$node" ] && [ -r "$node" ] && [ -w "$node" ]; } || echo "$node"; done'
# How often the engine is asked again what there is, and how long it is given to recover in between.
LISTED_AGAIN, LIST_PAUSE_SECONDS = 3, 1.0
WATCH_PAUSE_SECONDS = 1.0
# On the way back somebody waits: so long a failed container may take to say whether anybody has used it, and, where
# nobody has and there is nothing to be saved, to end.
SAYS_SECONDS, UNUSED_GRACE = 3.0, 2.0


NOTHING = Outcome()


class Steps:
    """The steps in their order, then those of the way back; each returns what it writes into the journal.

    Attributes:
        effects: name of the step, or of what undoes it → what it does.
    """

    def __init__(self, settings: Settings, sessions: Sessions, journal: Journal) -> None:
        self._settings, self._sessions, self._journal = settings, sessions, journal
        self._wishes, self._watch = PreferenceStore(journal.database), Watch(settings, sessions.engine)
        self._history = History(journal.database)
        self.effects: dict[str, Callable[[Move], Outcome]] = {
            "check": self._check,
            "pull": self._pull,
            "rehearse": self._rehearse,
            "create": self._create,
            "warm": self._warm,
            "copy": self._copy,
            "look": self._look,
            "stop": self._stop,
            "snapshot": self._snapshot,
            "start": self._start,
            "answer": self._answer,
            "verify": self._verify,
            "commit": lambda _: NOTHING,  # written with its line: whoever carries out the move does that
            "clean": self._clean,
            "rewarm": self._rewarm,
            "halt": self._halt,
            "restore": self._restore,
            "revive": self._revive,
            "reopen": self._reopen,
            "forget": self._forget,
            "cool": self._cool,
            "discard": self._discard,
        }

    def containers(self, session: str) -> tuple[Container, ...]:
        """The containers of a session.

        An engine that doesn't answer once must not leave a session where it is: half way, perhaps stopped.
        """
        for _ in range(LISTED_AGAIN):
            with suppress(RefitError):
                return self._sessions.engine.containers(session)
            fence.check()
            time.sleep(LIST_PAUSE_SECONDS)
        return self._sessions.engine.containers(session)

    def _check(self, move: Move) -> Outcome:
        if any(
            found.name == move.before.container and found.made_from != move.before
            for found in self.containers(move.before.name)
        ):
            raise Deferred("its container is made otherwise than it is written down: stop and start the session first")
        # A session that is ill already could neither be compared with its new image nor be brought back.
        if move.consent is not Consent.starts:
            self._sessions.wait_ready(move.before)
            self._ask_hook(move)
        self._sessions.homes.check_room(move.before)
        return NOTHING

    def _pull(self, move: Move) -> Outcome:
        try:
            self._sessions.engine.pull(move.after.image)
        except NoAnswer as error:  # that is no fault of the image
            raise Deferred(f"its image can't be had just now: {error.what}") from error
        return NOTHING

    def _rehearse(self, move: Move) -> Outcome:
        """What a killed rehearsal has left, the next one removes."""
        if not self._settings.migration.rehearse:
            return Outcome("the settings want none")
        if move.consent is Consent.starts:
            return Outcome("not rehearsed: its owner waits, and nobody is in it whom its failure would disturb")
        try:
            found = rehearse(self._settings, self._sessions.homes, move.after)
        except TooSlow as error:
            raise Deferred(f"{error.what} {error.why}") from error
        if found.failed:
            seen = "; ".join(f"{finding.check}: {finding.seen}" for finding in found.findings if not finding.passed)
            raise Unproven(f"The new image didn't stand its rehearsal on a copy of the home. {seen}")
        return Outcome(f"not rehearsed: {found.skipped}" if found.skipped else f"rehearsed in {found.seconds:g} s")

    def _create(self, move: Move) -> Outcome:
        back = previous_containers.goes_back(move)
        if not back:
            self._sessions.engine.remove(move.after.container)  # what an interrupted attempt has left
        self._sessions.ssh.prepare(move.after)
        self._sessions.engine.create(move.after)
        return Outcome("the container that it had") if back else self._replay(move)

    def _replay(self, move: Move) -> Outcome:
        """What was installed by hand comes along if its owner wants it; nobody waits for that yet."""
        if not self._wish(move.before.name).replay:
            return NOTHING
        made = hand_made(self._settings, self._sessions.engine, move.before)
        return Outcome(replay(self._settings, made, move.after.container))

    def _warm(self, move: Move) -> Outcome:
        """Its IDE is imported while the old one still runs; where that can't be, it starts only after the stop."""
        if why := self._not_warm(move.after):
            return Outcome(f"not warm: {why}")
        self._sessions.engine.warm(move.after)
        return NOTHING

    def _copy(self, move: Move) -> Outcome:
        self._sessions.homes.copy(move.before, move.id)
        return NOTHING

    def _look(self, move: Move) -> Outcome:
        """From here on nobody comes in; an owner who has agreed, or whose deadline has come, is only told.

        The data is what is open in it, which the stop ends.
        """
        if move.consent is Consent.starts:
            return Outcome(move.consent.text)
        self._ask_hook(move)
        if move.consent is Consent.forced and (why := frozen(self._candidate(move), self._rollout())):
            raise Deferred(why)
        ends = shutdown_notice.open_in(self._settings, self._sessions, move.before).to_json()
        if move.consent:
            shutdown_notice.warn(self._sessions, move.before)
            return Outcome(move.consent.text, data=ends)

        candidate = self._candidate(move)  # the catalog is read for it: before anybody waits

        def objection_to(seen: Look) -> str:
            known = replace(candidate, seen=seen, wish=self._wish(move.before.name))
            return objection(known, move.after.image, self._rollout())

        if why := self._watch.look_last(move.before, objection_to):
            raise Deferred(why)
        return Outcome("nobody works in it", data=ends)

    def _candidate(self, move: Move) -> Candidate:
        policy = self._policies.get((move.before.profile, move.before.release), self._settings.migration.sessions)
        told = self._history.events(session=move.before.name, kinds=(Kind.seen, Kind.withdrawn))
        noticed = first_told(told, Kind.seen).get((move.before.name, move.before.image))
        return Candidate(move.before, running=True, policy=policy, wish=self._wish(move.before.name), noticed=noticed)

    def _wish(self, session: str) -> UpdatePreferences:
        return self._wishes.of(session)

    def _rollout(self) -> PlanInput:
        return PlanInput(now(), {}, self._settings.migration, self._settings.keep_state)

    def _ask_hook(self, move: Move) -> None:
        """Where somebody has agreed, or the deadline has come, the hook may still save something, but not object."""
        if (why := hook.ask(self._sessions.engine, move.before, whether=not move.consent)) and not move.consent:
            raise Deferred(why)

    def _stop(self, move: Move) -> Outcome:
        self._sessions.halt(move.before, settle=False)
        return NOTHING

    def _snapshot(self, move: Move) -> Outcome:
        self._sessions.homes.delta(move.before, move.id)
        return NOTHING

    def _start(self, move: Move) -> Outcome:
        # On record it is the session's all the time; a program outside sessions doesn't ask.
        if users := self._sessions.gpus.users(move.after.devices, _stopped_at(self._journal.entries(move))):
            raise Unproven(f"Since the session was stopped, others have taken its GPU: {', '.join(users)}.")
        self._sessions.engine.start(move.after.container)
        return NOTHING

    def _answer(self, move: Move) -> Outcome:
        """Of an IDE that can't say whether anybody has used it, the home is compared before anybody is let in."""
        self._sessions.wait_answering(move.after)
        changed = () if _says_used(move.after) else self._changed(move, at_a_glance=True)
        if changed:
            raise _home_changed(changed)
        shutdown_notice.expect_pages(self._sessions, move.after, self._ended(move))
        self._sessions.route_traffic(move.after)
        return NOTHING

    def _verify(self, move: Move) -> Outcome:
        """The home first: the cell that is executed afterwards counts as use of the server."""
        unsure = ""
        try:
            changed = self._changed(move) if _says_used(move.after) else ()
        except NobodyKnows as error:  # that it is slow is no reason to take the session away again
            changed, unsure = self._changed(move, at_a_glance=True), error.what
        if changed and self._used(move) is not True:
            raise _home_changed(changed)
        if move.after.access.protocol == "jupyter":
            said = self._sessions.jupyter(move.after).execute(CELL)
            if said.strip() != CELL_SAYS:
                raise Unproven(f"A kernel answered {said!r} to {CELL!r}.")
        self._sessions.ssh.check(move.after)
        self._check_gpus(move.after)
        if why := hook.disproof(self._sessions.engine, move.after):
            raise Unproven(f"In its new container, {why}.")
        self._watch_it(move.after)
        kept = self._kept(move, changed) if changed else NOTHING
        return replace(kept, note="\n".join(filter(None, (kept.note, unsure))))

    def _watch_it(self, session: Session) -> None:
        """What ends a while after it was ready hasn't proven itself either."""
        if not (seconds := self._settings.migration.watch_seconds):
            return
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(WATCH_PAUSE_SECONDS, left))
            if not self._runs(session):
                raise Unproven(f"It ended within {seconds:g} s after it was ready.")
        self._sessions.wait_ready(session)

    def _check_gpus(self, session: Session) -> None:
        """The GPU is visible: each of its device nodes is there, and the session's user may use it."""
        nodes = sorted(self._sessions.gpus.nodes(session.devices)) if session.devices else []
        if nodes and (lacks := self._sessions.engine.execute(session.container, ["sh", "-c", _LACKS, "sh", *nodes])):
            raise Unproven(f"Its GPU can't be used in the new container: {', '.join(lacks.split())}.")

    def _clean(self, move: Move) -> Outcome:
        self._part_with_former(move)
        title = f"The session {move.after.name} is on another image now"
        told = shutdown_notice.reopen(self._sessions, move.after, self._ended(move), title)
        forgotten = self._forget(move)
        return replace(forgotten, note="\n".join(filter(None, (told, forgotten.note))))

    def _part_with_former(self, move: Move) -> None:
        """The old container goes, or is kept for a while; then those from before it go."""
        if not previous_containers.is_kept(move, self._settings.migration.keep_hours):
            self._sessions.engine.remove(move.before.container)
            return
        for found in self.containers(move.before.name):
            if found.name not in (move.before.container, move.after.container) and found.running is Running.stopped:
                self._sessions.engine.remove(found.name)

    # The way back.

    def _rewarm(self, move: Move) -> Outcome:
        """The old IDE is imported while the new one is ended and the home brought back; it gets that in `revive`."""
        if why := _stays_cold(move.before) or self._no_room(waiting=0):  # the one that failed waits for nothing more
            return Outcome(f"not warm: {why}")
        try:
            if self._sessions.engine.create(move.before).running is not Running.running:
                self._sessions.engine.warm(move.before, wait=False)
        except RefitError as error:  # it is started again when the home is there
            return Outcome(f"not warm: {error.what}")
        return NOTHING

    def _halt(self, move: Move) -> Outcome:
        alone = unattended.alone(self._journal.entries(move), self._used(move, SAYS_SECONDS))
        grace = self._settings.stop_grace
        with self._sessions.drain(move.after):  # for the rest of its end `cool` waits, when the old one is back
            self._sessions.engine.stop(move.after.container, min(grace, UNUSED_GRACE) if alone else grace, settle=False)
        return Outcome("nobody has used the new container", Code.unused) if alone else NOTHING

    def _restore(self, move: Move) -> Outcome:
        """Undo what the new image did to the home; what a person may have done there is never undone."""
        try:
            changed = self._changed(move)
        except NobodyKnows as error:  # somebody waits, and to bring it back doesn't take that long
            changed = (error.what,)
        if not changed:
            return NOTHING
        alone = has_code(self._journal.entries(move), Code.unused)
        if not alone or self._runs(move.before):
            return self._kept(move, changed)
        self._sessions.homes.restore(move.before, move.id)
        return Outcome(f"restored: {some(changed)}")

    def _revive(self, move: Move) -> Outcome:
        self._sessions.engine.create(move.before)
        self._sessions.engine.start(move.before.container)
        stopped = Entry("stop", Phase.done) in self._journal.entries(move)
        if not stopped:
            self._reopen(move)  # it may never have ended; one that was started anew is open
        self._sessions.wait_ready(move.before)
        if not stopped:
            return NOTHING
        title = f"The session {move.before.name} has the image again that it had"
        return Outcome(shutdown_notice.reopen(self._sessions, move.before, self._ended(move), title))

    def _ended(self, move: Move) -> Opened:
        return shutdown_notice.ended_by(self._journal.entries(move))

    def _reopen(self, move: Move) -> Outcome:
        if self._runs(move.before):
            self._sessions.engine.allow_ingress(move.before.container)
        return NOTHING

    def _forget(self, move: Move) -> Outcome:
        entries = self._journal.entries(move)
        if has_code(entries, Code.home_kept):
            return Outcome("the snapshot was kept")
        name, homes = move.before.name, self._sessions.homes
        there = self._sessions.store.has_home(name) and homes.has_snapshot(name, move.id)
        if there and _left_unrestored(entries) and (changed := self._changed(move)):
            return self._kept(move, changed)
        homes.forget(name, move.id)
        return NOTHING

    def _cool(self, move: Move) -> Outcome:
        self._sessions.engine.stop(move.after.container, self._settings.stop_grace)
        return NOTHING

    def _discard(self, move: Move) -> Outcome:
        if not previous_containers.goes_back(move):
            self._sessions.engine.remove(move.after.container)
        return NOTHING

    def _not_warm(self, session: Session) -> str:
        if why := _stays_cold(session):
            return why
        running = [each.session for each in self._sessions.engine.containers() if each.running is Running.running]
        return self._no_room(waiting=len(running) - len(set(running)))

    def _no_room(self, waiting: int) -> str:
        most, needed = self._settings.warm_containers, self._settings.warm_memory
        return no_room(waiting, most, psutil.virtual_memory().available / 1e9, needed)

    def _changed(self, move: Move, *, at_a_glance: bool = False) -> tuple[str, ...]:
        own = move.after.access.own_paths
        return self._sessions.homes.differences(move.before, move.id, own, at_a_glance=at_a_glance)

    def _kept(self, move: Move, changed: tuple[str, ...]) -> Outcome:
        snapshot = self._sessions.homes.snapshot(move.before.name, move.id)
        way_back = f"`refit home restore {move.before.name} {move.id}`"
        what = f"the home was changed, maybe by its user, and left so: {some(changed)}"
        return Outcome(f"{what}; as it was before: {snapshot}, {way_back}", Code.home_kept)

    def _used(self, move: Move, limit: float = 30.0) -> bool | None:
        """Whether anybody has used the new container since it started; none if it doesn't say so in `limit` seconds."""
        if not _says_used(move.after):
            return None
        try:
            return self._sessions.jupyter(move.after).used(limit)
        except RefitError:
            return None

    def _runs(self, session: Session) -> bool:
        """Whether it runs, and has its home."""
        found = next((each for each in self.containers(session.name) if each.name == session.container), None)
        return bool(found and found.running is Running.running and not found.warm)

    @cached_property
    def _policies(self) -> Mapping[ImageKey, SessionPolicy]:
        try:
            return policies(self._settings)
        except RefitError as error:
            raise Deferred(f"nobody knows what holds for it: {error.what}") from error


def _home_changed(paths: Sequence[str]) -> Unproven:
    return Unproven(f"The new image changed the home: {some(paths)}.")


def _says_used(session: Session) -> bool:
    """Whether its IDE says if anybody has used it since it started."""
    return session.access.protocol == "jupyter"


def _stays_cold(session: Session) -> str:
    """Why the container of a session can't run before its home comes, beside another one of it; empty: it can. Pure."""
    return "" if session.late_home else "its home can't come later"


def no_room(waiting: int, most: int, free: float, needed: float) -> str:
    """Why no further container may wait for its home; empty: one may. In GB. Pure."""
    if waiting >= most:
        return f"{waiting} others wait already"
    return f"{free:.1f} GB of memory are free, and {needed:g} GB are needed" if free < needed else ""


def _stopped_at(entries: Sequence[Entry]) -> datetime:
    """When the stop of the session began."""
    return max((entry.at for entry in entries if entry.step == "stop" and entry.at), default=now())


def _left_unrestored(entries: Sequence[Entry]) -> bool:
    """Whether a new container may have touched a home that nobody compares any more: its session was deleted."""
    begun = {entry.step for entry in entries if entry.phase is Phase.intent}
    done = {entry.step for entry in entries if entry.phase is Phase.done}
    return "start" in begun and not {"commit", "restore"} & done
