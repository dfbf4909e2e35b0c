"""Carrying moves out: the side effects behind the steps of `move`, each announced in the journal before it happens.

Every effect is made so that it can be done again: it looks at what is there and does what is missing. What fails is
written down, and `decide` finds the way back; what is interrupted is found by `resume_all`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property

from sqlalchemy.orm import Session as Transaction

from flows import command
from flows.database import Lease, LeaseTaken, now, open_database
from flows.errors import RefitError, UnknownName
from flows.images.registry import Registry
from flows.migrations.consent import objection
from flows.migrations.journal import Journal, Move, downtime
from flows.migrations.move import FINAL, Do, End, Entry, GiveUp, Phase, Seen, State, Undo, decide, unsettled
from flows.migrations.plan import Action, Decision, moved
from flows.migrations.policies import policies
from flows.migrations.rehearsal import rehearse
from flows.migrations.rollout import Candidate, ImageKey, Rollout, Way
from flows.migrations.standing import Standings
from flows.policy import SessionPolicy
from flows.progress import State as Shown
from flows.progress import report
from flows.publishing.publish import access_of
from flows.sessions import terminals
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.sessions.probes import Seen as Look
from flows.sessions.probes import Watch
from flows.sessions.store import record
from flows.sessions.wishes import Wish, Wishes, caller
from flows.settings import Settings

logger = logging.getLogger("refit.migrations")

CELL, CELL_SAYS = "print(6 * 7)", "42"
MOST_NAMED = 10
MOVES_NOW = "This session moves to a new image now. Its home stays as it is; open it again in a minute."
# A session is stopped only as long as the last look at it is younger than this.
LOOK_AGE = timedelta(seconds=30)
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
        self._registry = Registry(settings)
        self._wishes, self._watch = Wishes(journal.database), Watch(settings, sessions.engine)
        self._effects: dict[str, Callable[[Move], str]] = {
            "check": self._check,
            "pull": self._pull,
            "rehearse": self._rehearse,
            "create": self._create,
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
            "discard": self._discard,
        }

    @classmethod
    def open(cls, settings: Settings) -> Carrier:
        """A carrier for the sessions of these settings."""
        database = open_database(settings.database)
        return cls(settings, Sessions.open(settings, database), Journal(database))

    def carry_out(self, decision: Decision, packages: str = "") -> Result:
        """Move one session, or say why it isn't moved; a move that fails is undone.

        Args:
            decision: the line of the plan.
            packages: what changes between the images, in words.

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
            after = moved(before, decision.new, access_of(decision.new, self._registry))
            consent, wave = decision.consent, decision.wave
            move = self.journal.begin(held, before, after, packages, consent=consent, wave=wave, by=caller())
            return self._drive(held, move)

    def resume_all(self) -> tuple[Result, ...]:
        """Bring every unfinished move to its end, forwards or backwards; those that another run works on are left."""
        return tuple(result for move in self.journal.unfinished() if (result := self._resume(move)))

    def reopen(self, session: str) -> Result | None:
        """Try once more to end the held move of a session; none if its latest move is not held.

        Raises:
            UnknownName: it was never moved.
            RefitError: another run holds the session.
        """
        with self.sessions.alone(session) as held:
            latest = self.journal.latest()
            if session not in latest:
                raise UnknownName("move of a session", session, latest)
            move = latest[session]
            if move.state is not State.held:
                return None
            self.journal.write(held, move, Entry("", Phase.reopened))
            return self._drive(held, move)

    @cached_property
    def _policies(self) -> Mapping[ImageKey, SessionPolicy]:
        try:
            return policies(self._settings)
        except RefitError as error:
            raise Deferred(f"nobody knows what holds for it: {error.what}") from error

    def _outdated(self, decision: Decision) -> str:
        """What has changed since the plan was made; empty: nothing that matters."""
        found = {session.name: session for session in self.sessions.store.sessions()}.get(decision.session)
        last = self.journal.latest().get(decision.session)
        if found is None:
            return "the session was deleted meanwhile"
        if found.image != decision.old:
            return "it was given another image meanwhile"
        standing = Standings(self.journal.database).all().get(decision.new)
        if standing and standing.way is not Way.running and not decision.agreed:
            return f"the rollout is {standing.way}"
        return "its last move is unfinished" if last and last.state not in FINAL - {State.held} else ""

    def _resume(self, move: Move) -> Result | None:
        try:
            with self.sessions.alone(move.before.name, wait=0) as held:
                if (move := self.journal.move(move.id)).state in FINAL:
                    return None
                if step := unsettled(self.journal.entries(move)):
                    self.journal.write(held, move, Entry(step, Phase.interrupted, "what still ran of it was ended"))
                return self._drive(held, move)
        except LeaseTaken:
            return None

    def _drive(self, held: Lease, move: Move) -> Result:
        """Take the next step until there is none."""
        interrupted: BaseException | None = None
        while not isinstance(chosen := decide(self.journal.entries(move), self._look(move)), End):
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

        self.journal.write(held, move, Entry(name, Phase.done, note), commit if name == "commit" else None)

    def _end(self, held: Lease, move: Move, end: End) -> Result:
        kept = next((entry.note for entry in self.journal.entries(move) if entry.note.startswith(KEPT)), "")
        advice = self._advice(move) if end.state is State.held else ""
        reason = "\n".join(filter(None, (end.reason, kept, advice)))
        damaged = end.state is State.held or bool(kept)
        ended = self.journal.end(held, move, end.state, reason, damaged=damaged)
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

    def _look(self, move: Move) -> Seen:
        before, after = move.before, move.after
        found = {container.name: container.running for container in self.sessions.engine.containers(before.name)}
        recorded = before in self.sessions.store.sessions()
        wanted = recorded and before.name in self.sessions.store.wanted()
        fresh = _is_fresh(self.journal.entries(move))
        return Seen(recorded, wanted, found.get(before.container), found.get(after.container), fresh)

    # The steps, in their order. Each returns a note for the journal.

    def _check(self, move: Move) -> str:
        # A session that is ill already could neither be compared with its new image nor be brought back.
        self.sessions.wait_ready(move.before)
        self.sessions.homes.check_room(move.before)
        return ""

    def _pull(self, move: Move) -> str:
        self.sessions.engine.pull(move.after.image)
        return ""

    def _rehearse(self, move: Move) -> str:
        """What a killed rehearsal has left, the next one removes."""
        if not self._settings.migration.rehearse:
            return "the settings want none"
        found = rehearse(self._settings, self.sessions.homes, move.after)
        if found.failed:
            seen = "; ".join(f"{finding.check}: {finding.seen}" for finding in found.findings if not finding.passed)
            raise Unproven(f"The new image didn't stand its rehearsal on a copy of the home. {seen}")
        return f"not rehearsed: {found.skipped}" if found.skipped else f"rehearsed in {found.seconds:g} s"

    def _create(self, move: Move) -> str:
        self.sessions.engine.remove(move.after.container)  # what an interrupted attempt has left
        self.sessions.engine.create(move.after)
        return ""

    def _copy(self, move: Move) -> str:
        self.sessions.homes.copy(move.before, move.id)
        return ""

    def _look_last(self, move: Move) -> str:
        """From here on nobody comes in; who has agreed to be interrupted, or whose deadline has come, is only told."""
        if move.consent:
            with suppress(RefitError):  # it is moved whether it can be told or not
                terminals.write_to_all(self.sessions.engine, move.before, MOVES_NOW)
            return move.consent
        policy = self._policies.get((move.before.profile, move.before.release), self._settings.migration.sessions)
        wish = self._wishes.all().get(move.before.name, Wish())

        def objection_to(seen: Look) -> str:
            candidate = Candidate(move.before, running=True, policy=policy, wish=wish, seen=seen)
            rollout = Rollout(now(), {}, self._settings.migration, self._settings.keep_state)
            return objection(candidate, move.after.image, rollout)

        if why := self._watch.look_last(move.before, objection_to):
            raise Deferred(why)
        return "nobody works in it"

    def _stop(self, move: Move) -> str:
        self.sessions.halt(move.before)
        return ""

    def _snapshot(self, move: Move) -> str:
        self.sessions.homes.delta(move.before, move.id)
        return ""

    def _start(self, move: Move) -> str:
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
        return self._kept(move, changed) if changed else ""

    def _clean(self, move: Move) -> str:
        self.sessions.engine.remove(move.before.container)
        return self._forget(move)

    # The way back.

    def _halt(self, move: Move) -> str:
        answered = Entry("answer", Phase.done) in self.journal.entries(move)
        alone = not answered or self._used(move) is False
        self.sessions.engine.stop(move.after.container, self._settings.stop_grace)
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
        if move.before.port and self._look(move).old is Running.running:
            self.sessions.engine.let_in(move.before.container)
        return ""

    def _forget(self, move: Move) -> str:
        if any(entry.note.startswith(KEPT) for entry in self.journal.entries(move)):
            return "the snapshot was kept"
        self.sessions.homes.forget(move.before.name, move.id)
        return ""

    def _discard(self, move: Move) -> str:
        self.sessions.engine.remove(move.after.container)
        return ""

    def _changed(self, move: Move) -> tuple[str, ...]:
        return self.sessions.homes.differences(move.before, move.id, move.after.access.own_paths)

    def _kept(self, move: Move, changed: tuple[str, ...]) -> str:
        snapshot = self.sessions.homes.snapshot(move.before.name, move.id)
        return f"{KEPT}: {_some(changed)}; as it was before: {snapshot}"

    def _used(self, move: Move) -> bool | None:
        """Whether anybody has used the new container since it started; none if that can't be told."""
        if move.after.access.protocol != "jupyter":
            return None
        try:
            return self.sessions.jupyter(move.after).used()
        except RefitError:
            return None


def _is_fresh(entries: Sequence[Entry]) -> bool:
    """Whether the last look is young enough for a stop."""
    looks = [entry.at for entry in entries if (entry.step, entry.phase) == ("look", Phase.done) and entry.at]
    return bool(looks) and now() - looks[-1] <= LOOK_AGE


def _some(things: tuple[str, ...]) -> str:
    more = len(things) - MOST_NAMED
    return ", ".join(things[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
