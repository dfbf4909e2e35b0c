"""Carrying moves out: the side effects behind the steps of `move`, each announced in the journal before it happens.

Every effect is made so that it can be done again: it looks at what is there and does what is missing. What fails is
written down, and `decide` finds the way back; what is interrupted is found by `resume_all`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, cached_property, partial

import psutil
from sqlalchemy.orm import Session as Transaction

from flows import command
from flows.compatibility.changes import hand_made
from flows.compatibility.replay import replay
from flows.database import Lease, LeaseTaken, now, open_database
from flows.errors import RefitError, UnknownName
from flows.images.registry import NoAnswer, Registry
from flows.migrations import parting, unseen
from flows.migrations.journal import Journal, Move, downtime
from flows.migrations.move import FINAL, Do, End, Entry, GiveUp, Next, Phase, Seen, State, Undo, decide, unsettled
from flows.migrations.planning.consent import frozen, objection
from flows.migrations.planning.plan import Action, Decision, moved
from flows.migrations.planning.policies import policies
from flows.migrations.planning.rollout import FORCED, STARTS, Candidate, ImageKey, Reason, Rollout, Way
from flows.migrations.rehearsal import CELL, CELL_SAYS, rehearse
from flows.migrations.telling.standing import Standings
from flows.policy import SessionPolicy
from flows.progress import State as Shown
from flows.progress import report
from flows.publishing.publish import access_of
from flows.sessions.gpus.gpu import NoGpu
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running, Session
from flows.sessions.store import record
from flows.sessions.watching import hook
from flows.sessions.watching.probes import Seen as Look
from flows.sessions.watching.probes import Watch
from flows.sessions.wishes import Wish, Wishes, caller
from flows.settings import Settings

logger = logging.getLogger("refit.migrations")

# Which of these paths is no device that can be read and written.
_LACKS = 'for node; do { [ -c "$node" ] && [ -r "$node" ] && [ -w "$node" ]; } || echo "$node"; done'
MOST_NAMED = 10
# The steps after which the world is known for an instant.
WHILE_AWAY = frozenset({"look", "stop", "snapshot", "start"})
# A session is stopped only as long as the last look at it is younger than this.
LOOK_AGE = timedelta(seconds=30)
# How often the engine is asked again what there is, and how long it is given to recover in between.
LISTED_AGAIN, LIST_PAUSE_SECONDS = 3, 1.0
WATCH_PAUSE_SECONDS = 1.0
# What `halt` and `restore` tell the steps after them, through the journal.
ALONE = "nobody has used the new container"
KEPT = "the home was changed, maybe by its user, and left so"


@dataclass(frozen=True)
class Result:
    """What became of one session.

    Attributes:
        session: its name.
        old: digest of the image that it had.
        new: digest of the image that it was to get.
        packages: what that changes, in words.
        downtime: seconds from the request to stop until its IDE answered again; none if it was not stopped.
        state: how its move ended; `skipped` also where there was none.
        reason: why it did not move; empty if it did.
        error: what kept its move from being tried; empty if nothing did.
    """

    session: str
    old: str
    new: str
    packages: str
    downtime: float | None
    state: State
    reason: str
    error: str = ""

    @property
    def moved(self) -> bool:
        """Whether it runs on the new image now."""
        return self.state is State.cleaned

    @property
    def failed(self) -> bool:
        """Whether somebody should look: it was rolled back, is held, or could not be tried."""
        return self.state in (State.rolled_back, State.held) or bool(self.error)


class Unproven(RefitError):
    """The session runs on its new image, but not as it should."""


class Deferred(RefitError):
    """A session that isn't to be stopped just now: somebody works in it, or its owner wants it otherwise."""


class Carrier:
    """Carries moves out, one per session at a time."""

    def __init__(self, settings: Settings, sessions: Sessions, journal: Journal) -> None:
        self._settings, self.sessions, self.journal = settings, sessions, journal
        self._access = cache(partial(access_of, registry=Registry(settings)))  # what a digest stands for stays
        self._wishes, self._watch = Wishes(journal.database), Watch(settings, sessions.engine)
        self._seen: dict[str, Seen] = {}
        self._effects: dict[str, Callable[[Move], str]] = {
            "check": self._check,
            "pull": self._pull,
            "rehearse": self._rehearse,
            "create": self._create,
            "warm": self._warm,
            "copy": self._copy,
            "look": self._look_last,
            "stop": self._stop,
            "snapshot": self._snapshot,
            "start": self._start,
            "answer": self._answer,
            "verify": self._verify,
            "commit": lambda _: "",  # written with its line: see `_turn`
            "clean": self._clean,
            "halt": self._halt,
            "restore": self._restore,
            "revive": self._revive,
            "reopen": self._reopen,
            "forget": self._forget,
            "cool": self._cool,
            "discard": self._discard,
        }

    @classmethod
    def open(cls, settings: Settings) -> Carrier:
        """A carrier for the sessions of these settings."""
        database = open_database(settings.database)
        return cls(settings, Sessions.open(settings, database), Journal(database))

    def carry_out(
        self, decision: Decision, packages: str = "", becomes: Callable[[Session], Session] = lambda after: after
    ) -> Result:
        """Move one session, or say why it isn't moved; a move that fails is undone.

        Args:
            decision: the line of the plan.
            packages: what changes between the images, in words.
            becomes: what else than its image is another one afterwards: its profile, for instance.

        Raises:
            RefitError: another run holds the session, the new image doesn't fit it, or registry or database don't do
                their part; nothing was begun.
        """
        stays = Result(decision.session, decision.old, decision.new, packages, None, State.skipped, "")
        if decision.action is not Action.migrate:
            return replace(stays, reason=decision.why)
        with self.sessions.alone(decision.session) as held:
            if reason := self._outdated(decision):
                return replace(stays, reason=reason)
            before = self.sessions.store.session(decision.session)
            after = becomes(moved(before, decision.new, self._access(decision.new)))
            try:
                after = self.sessions.with_gpus(replace(after, late_home=self.sessions.binds_late(after)))
            except NoGpu as error:
                return replace(stays, reason=f"{Reason.gpu}; {error.why}")
            consent, wave = decision.consent, decision.wave
            move = self.journal.begin(held, before, after, packages, consent=consent, wave=wave, by=caller())
            return self._drive(held, move)

    def resume_all(self) -> tuple[Result, ...]:
        """Bring every unfinished move to its end, forwards or backwards; those that another run works on are left.

        Raises:
            RefitError: some could not be resumed just now; it was tried with all.
        """
        results, problems = [], []
        for move in self.journal.unfinished():
            try:
                results.append(self.resume(move))
            except RefitError as error:
                problems.append(f"{move.before.name}: {error}")
        if problems:
            raise RefitError("Not every move could be resumed.", why="\n".join(problems), fix="try again later.")
        return tuple(filter(None, results))

    def resume(self, move: Move) -> Result | None:
        """Bring one move to its end, forwards or backwards; none: it has ended, or another run works on it.

        Raises:
            RefitError: that can't be done just now.
        """
        try:
            with self.sessions.alone(move.before.name, wait=0) as held:
                if (move := self.journal.take_over(move.id)).state in FINAL:
                    return None
                step, happened = unsettled(self.journal.entries(move)), self._unseen(move)
                if step or happened:
                    note = happened or "what still ran of it was ended"
                    self.journal.write(held, move, Entry(step, Phase.interrupted, note))
                return self._drive(held, move)
        except LeaseTaken:
            return None

    def reopen(self, session: str) -> Result | None:
        """Try once more to end the held move of a session; none if its latest move is not held.

        Raises:
            UnknownName: it was never moved.
            RefitError: another run holds the session.
        """
        with self.sessions.alone(session) as held:
            if (move := self.journal.last(session)) is None:
                raise UnknownName("move of a session", session, self.journal.latest())
            if move.state is not State.held:
                return None
            self.journal.write(held, move, Entry("", Phase.reopened, self._unseen(move)))
            return self._drive(held, move)

    @cached_property
    def _policies(self) -> Mapping[ImageKey, SessionPolicy]:
        try:
            return policies(self._settings)
        except RefitError as error:
            raise Deferred(f"nobody knows what holds for it: {error.what}") from error

    def _outdated(self, decision: Decision) -> str:
        """What has changed since the plan was made; empty: nothing that matters."""
        found = self.sessions.store.find(decision.session)
        last = self.journal.last(decision.session)
        if found is None:
            return "the session was deleted meanwhile"
        if found[0].image != decision.old:
            return "it was given another image meanwhile"
        if changes := self.sessions.engine.by_hand(found[0]):
            return f"its container was changed by hand: {_some(changes)}"
        way = Standings(self.journal.database).way(decision.new)
        if way is not Way.running and not decision.agreed:
            return f"the rollout is {way}"
        return "its last move is unfinished" if last and last.state not in FINAL - {State.held} else ""

    def _unseen(self, move: Move) -> str:
        """What may have happened in the new container since the last line was written."""
        entries = self.journal.entries(move)
        if not unseen.begun(entries, "start"):
            return ""
        found = self._containers(move.before.name)
        return unseen.since(entries, next((each for each in found if each.name == move.after.container), None))

    def _drive(self, held: Lease, move: Move) -> Result:
        """Take the next step until there is none."""
        interrupted: BaseException | None = None
        while not isinstance(chosen := self._decide(move), End):
            try:
                self._turn(held, move, chosen)
            except (KeyboardInterrupt, SystemExit) as error:
                if interrupted:
                    raise
                interrupted = error  # written down as a failure: the way back is short, and somebody waits
        result = self._end(held, move, chosen)
        if interrupted:
            raise interrupted
        return result

    def _turn(self, held: Lease, move: Move, chosen: Do | Undo | GiveUp) -> None:
        if isinstance(chosen, GiveUp):
            self.journal.write(held, move, Entry(chosen.step.name, chosen.phase, chosen.reason))
            return
        name = chosen.step.name if isinstance(chosen, Do) else chosen.step.undo
        report(move.before.name, Shown.running, name)
        self.journal.write(held, move, Entry(name, Phase.intent))
        try:
            with command.logged(self._settings.folder("logs", "moves") / f"{move.before.name}.log"):
                note = self._effects[name](move)
        except Deferred as error:
            self.journal.write(held, move, Entry(name, Phase.deferred, error.what))
            return
        except BaseException as error:
            self.journal.write(held, move, Entry(name, Phase.failed, str(error) or type(error).__name__))
            if not isinstance(error, RefitError):
                logger.exception("%s: the step %r failed", move.id, name)
            if not isinstance(error, Exception):
                raise
            return

        def commit(transaction: Transaction) -> None:
            record(transaction, move.after)

        done = Entry(name, Phase.done, note)
        if name == "commit":
            self.journal.write(held, move, done, commit)
        else:
            self.journal.note(held, move, done)

    def _end(self, held: Lease, move: Move, end: End) -> Result:
        kept = next((entry.note for entry in self.journal.entries(move) if entry.note.startswith(KEPT)), "")
        advice = self._advice(move) if end.state is State.held else ""
        reason = "\n".join(filter(None, (end.reason, kept, advice)))
        damaged = end.state is State.held or bool(kept)
        ended = self.journal.end(held, move, end.state, reason, damaged=damaged)
        if (move.before.gpus or move.after.gpus) and end.state is not State.held:
            self.sessions.settle_gpus(move.before.name)
        done = end.state in (State.cleaned, State.deferred)
        report(move.before.name, Shown.done if done else Shown.failed, end.state)
        return self.result(ended)

    def result(self, move: Move) -> Result:
        """What the journal knows of a move that has ended."""
        down = downtime(self.journal.entries(move))
        before, after = move.before, move.after
        return Result(before.name, before.image, after.image, move.packages, down, move.state, move.reason)

    def _advice(self, move: Move) -> str:
        snapshot = self.sessions.homes.snapshot(move.before.name, move.id)
        return (
            f"Nothing was removed: the containers {move.before.container} and {move.after.container} and the snapshot "
            f"{snapshot} are as they were left. Mend the cause, then `refit migrate resume {move.before.name}`."
        )

    def _decide(self, move: Move) -> Next:
        entries = self.journal.entries(move)
        return decide(entries, self._foreseen(move, entries) or self._look(move, entries))

    def _foreseen(self, move: Move, entries: Sequence[Entry]) -> Seen | None:
        """What the world says while people wait, without asking the engine, which takes longer than the steps.

        This run has just seen or done it itself; an old container that gets started meanwhile finds no home in its
        slot. None: the engine has to be asked.
        """
        last, known = next(reversed(entries), None), self._seen.get(move.id)
        if known is None or last is None or last.phase is not Phase.done or last.step not in WHILE_AWAY:
            return None
        session, wanted = self.sessions.store.find(move.before.name) or (None, False)
        recorded = session == move.before
        old = known.old if last.step == "look" else Running.stopped
        return replace(known, session=recorded, wanted=recorded and wanted, old=old, fresh=_is_fresh(entries))

    def _look(self, move: Move, entries: Sequence[Entry] = ()) -> Seen:
        before, after = move.before, move.after
        found = {container.name: container for container in self._containers(before.name)}
        known, wanted = self.sessions.store.find(before.name) or (None, False)
        recorded, lines = known == before, entries or self.journal.entries(move)
        fresh, again = _is_fresh(lines), _started_again(found.get(before.container), lines)
        old, new = (found[name].running if name in found else None for name in (before.container, after.container))
        seen = Seen(recorded, recorded and wanted, old, new, fresh, starts=move.consent == STARTS, again=again)
        if before.late_home:
            self._seen[move.id] = seen
        return seen

    def _containers(self, session: str) -> tuple[Container, ...]:
        """An engine that doesn't answer once must not leave a session where it is: half way, perhaps stopped."""
        for _ in range(LISTED_AGAIN):
            with suppress(RefitError):
                return self.sessions.engine.containers(session)
            time.sleep(LIST_PAUSE_SECONDS)
        return self.sessions.engine.containers(session)

    # The steps, in their order. Each returns a note for the journal.

    def _check(self, move: Move) -> str:
        if any(
            found.name == move.before.container and found.made_from != move.before
            for found in self._containers(move.before.name)
        ):
            raise Deferred("its container is made otherwise than it is written down: stop and start the session first")
        # A session that is ill already could neither be compared with its new image nor be brought back.
        if move.consent != STARTS:
            self.sessions.wait_ready(move.before)
            self._ask_hook(move)
        self.sessions.homes.check_room(move.before)
        return ""

    def _pull(self, move: Move) -> str:
        try:
            self.sessions.engine.pull(move.after.image)
        except NoAnswer as error:  # that is no fault of the image
            raise Deferred(f"its image can't be had just now: {error.what}") from error
        return ""

    def _rehearse(self, move: Move) -> str:
        """What a killed rehearsal has left, the next one removes."""
        if not self._settings.migration.rehearse:
            return "the settings want none"
        if move.consent == STARTS:
            return "not rehearsed: its owner waits, and nobody is in it whom its failure would disturb"
        found = rehearse(self._settings, self.sessions.homes, move.after)
        if found.failed:
            seen = "; ".join(f"{finding.check}: {finding.seen}" for finding in found.findings if not finding.passed)
            raise Unproven(f"The new image didn't stand its rehearsal on a copy of the home. {seen}")
        return f"not rehearsed: {found.skipped}" if found.skipped else f"rehearsed in {found.seconds:g} s"

    def _create(self, move: Move) -> str:
        self.sessions.engine.remove(move.after.container)  # what an interrupted attempt has left
        self.sessions.ssh.prepare(move.after)
        self.sessions.engine.create(move.after)
        return self._replay(move)

    def _replay(self, move: Move) -> str:
        """What was installed by hand comes along if its owner wants it; nobody waits for that yet."""
        if not self._wish(move.before.name).replay:
            return ""
        made = hand_made(self._settings, self.sessions.engine, move.before)
        return replay(self._settings, made, move.after.container)

    def _warm(self, move: Move) -> str:
        """Its IDE is imported while the old one still runs; where that can't be, it starts only after the stop."""
        if why := self._not_warm(move.after):
            return f"not warm: {why}"
        self.sessions.engine.warm(move.after)
        return ""

    def _copy(self, move: Move) -> str:
        self.sessions.homes.copy(move.before, move.id)
        return ""

    def _look_last(self, move: Move) -> str:
        """From here on nobody comes in; who has agreed to be interrupted, or whose deadline has come, is only told.

        The last line of the note is what is open in it, which the stop ends.
        """
        if move.consent == STARTS:
            return move.consent
        self._ask_hook(move)
        if move.consent == FORCED and (why := frozen(self._candidate(move), self._rollout())):
            raise Deferred(why)
        ends = parting.open_in(self._settings, self.sessions, move.before).to_json()
        if move.consent:
            parting.warn(self.sessions, move.before)
            return f"{move.consent}\n{ends}"

        candidate = self._candidate(move)  # the catalog is read for it: before anybody waits

        def objection_to(seen: Look) -> str:
            known = replace(candidate, seen=seen, wish=self._wish(move.before.name))
            return objection(known, move.after.image, self._rollout())

        if why := self._watch.look_last(move.before, objection_to):
            raise Deferred(why)
        return f"nobody works in it\n{ends}"

    def _candidate(self, move: Move) -> Candidate:
        policy = self._policies.get((move.before.profile, move.before.release), self._settings.migration.sessions)
        return Candidate(move.before, running=True, policy=policy, wish=self._wish(move.before.name))

    def _wish(self, session: str) -> Wish:
        return self._wishes.of(session)

    def _rollout(self) -> Rollout:
        return Rollout(now(), {}, self._settings.migration, self._settings.keep_state)

    def _ask_hook(self, move: Move) -> None:
        """Where somebody has agreed, or the deadline has come, the hook may still save something, but not object."""
        if (why := hook.ask(self.sessions.engine, move.before, whether=not move.consent)) and not move.consent:
            raise Deferred(why)

    def _stop(self, move: Move) -> str:
        self.sessions.halt(move.before, settle=False)
        return ""

    def _snapshot(self, move: Move) -> str:
        self.sessions.homes.delta(move.before, move.id)
        return ""

    def _start(self, move: Move) -> str:
        # On record it is the session's all the time; a program outside sessions doesn't ask.
        if users := self.sessions.gpus.users(move.after.devices, _stopped_at(self.journal.entries(move))):
            raise Unproven(f"Since the session was stopped, others have taken its GPU: {', '.join(users)}.")
        self.sessions.engine.start(move.after.container)
        return ""

    def _answer(self, move: Move) -> str:
        self.sessions.wait_ready(move.after)
        return ""

    def _verify(self, move: Move) -> str:
        """The home first: the cell that is executed afterwards counts as use of the server."""
        changed = self._changed(move)
        used = self._used(move)
        if changed and used is not True:
            raise Unproven(f"The new image changed the home: {_some(changed)}.")
        if move.after.access.protocol == "jupyter":
            said = self.sessions.jupyter(move.after).execute(CELL)
            if said.strip() != CELL_SAYS:
                raise Unproven(f"A kernel answered {said!r} to {CELL!r}.")
        self.sessions.ssh.check(move.after)
        self._check_gpus(move.after)
        if why := hook.disproof(self.sessions.engine, move.after):
            raise Unproven(f"In its new container, {why}.")
        self._watch_it(move.after)
        return self._kept(move, changed) if changed else ""

    def _watch_it(self, session: Session) -> None:
        """What ends a while after it was ready hasn't proven itself either."""
        if not (seconds := self._settings.migration.watch_seconds):
            return
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(WATCH_PAUSE_SECONDS, left))
            found = {each.name: each.running for each in self._containers(session.name)}
            if found.get(session.container) is not Running.running:
                raise Unproven(f"It ended within {seconds:g} s after it was ready.")
        self.sessions.wait_ready(session)

    def _check_gpus(self, session: Session) -> None:
        """The GPU is visible: each of its device nodes is there, and the session's user may use it."""
        nodes = sorted(self.sessions.gpus.nodes(session.devices)) if session.devices else []
        if nodes and (lacks := self.sessions.engine.execute(session.container, ["sh", "-c", _LACKS, "sh", *nodes])):
            raise Unproven(f"Its GPU can't be used in the new container: {', '.join(lacks.split())}.")

    def _clean(self, move: Move) -> str:
        self.sessions.engine.remove(move.before.container)
        told = parting.reopen(self.sessions, move.after, parting.ended_by(self.journal.entries(move)))
        return "\n".join(filter(None, (told, self._forget(move))))

    # The way back.

    def _halt(self, move: Move) -> str:
        alone = unseen.alone(self.journal.entries(move), self._used(move))
        with self.sessions.turned_away(move.after):  # for the rest of its end `cool` waits, when the old one is back
            self.sessions.engine.stop(move.after.container, self._settings.stop_grace, settle=False)
        return ALONE if alone else ""

    def _restore(self, move: Move) -> str:
        """Undo what the new image did to the home; what a person may have done there is never undone."""
        changed = self._changed(move)
        if not changed:
            return ""
        alone = Entry("halt", Phase.done, ALONE) in self.journal.entries(move)
        if not alone or self._look(move).old is Running.running:
            return self._kept(move, changed)
        self.sessions.homes.restore(move.before, move.id)
        return f"restored: {_some(changed)}"

    def _revive(self, move: Move) -> str:
        self.sessions.engine.create(move.before)
        self.sessions.engine.start(move.before.container)
        self._reopen(move)  # it has never ended, if the stop failed
        self.sessions.wait_ready(move.before)
        return ""

    def _reopen(self, move: Move) -> str:
        if move.before.doors and self._look(move).old is Running.running:
            self.sessions.engine.let_in(move.before.container)
        return ""

    def _forget(self, move: Move) -> str:
        entries = self.journal.entries(move)
        if any(entry.note.startswith(KEPT) for entry in entries):
            return "the snapshot was kept"
        name, homes = move.before.name, self.sessions.homes
        there = self.sessions.store.has_home(name) and homes.has_snapshot(name, move.id)
        if there and _left_unrestored(entries) and (changed := self._changed(move)):
            return self._kept(move, changed)
        homes.forget(name, move.id)
        return ""

    def _cool(self, move: Move) -> str:
        self.sessions.engine.stop(move.after.container, self._settings.stop_grace)
        return ""

    def _discard(self, move: Move) -> str:
        self.sessions.engine.remove(move.after.container)
        return ""

    def _not_warm(self, session: Session) -> str:
        if session.port:
            return "its port is the old one's as long as that runs"
        if not session.late_home:
            return "its home can't come later"
        running = [each.session for each in self.sessions.engine.containers() if each.running is Running.running]
        waiting = len(running) - len(set(running))
        most, needed = self._settings.warm_containers, self._settings.warm_memory
        return no_room(waiting, most, psutil.virtual_memory().available / 1e9, needed)

    def _changed(self, move: Move) -> tuple[str, ...]:
        return self.sessions.homes.differences(move.before, move.id, move.after.access.own_paths)

    def _kept(self, move: Move, changed: tuple[str, ...]) -> str:
        snapshot = self.sessions.homes.snapshot(move.before.name, move.id)
        way_back = f"`refit home restore {move.before.name} {move.id}`"
        return f"{KEPT}: {_some(changed)}; as it was before: {snapshot}, {way_back}"

    def _used(self, move: Move) -> bool | None:
        """Whether anybody has used the new container since it started; none if that can't be told."""
        if move.after.access.protocol != "jupyter":
            return None
        try:
            return self.sessions.jupyter(move.after).used()
        except RefitError:
            return None


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


def _is_fresh(entries: Sequence[Entry]) -> bool:
    """Whether the last look is young enough for a stop."""
    looks = [entry.at for entry in entries if (entry.step, entry.phase) == ("look", Phase.done) and entry.at]
    return bool(looks) and now() - looks[-1] <= LOOK_AGE


def _started_again(old: Container | None, entries: Sequence[Entry]) -> bool:
    """Whether somebody has started the old container since its stop began."""
    begun = unseen.begun(entries, "stop")
    return bool(begun and old and old.started and old.started > begun)


def _some(things: tuple[str, ...]) -> str:
    more = len(things) - MOST_NAMED
    return ", ".join(things[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
