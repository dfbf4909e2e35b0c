"""Carrying moves out: each step is announced in the journal before it is done, and written down afterwards.

A failure is written down as well, and `decide` finds the way back; `recovery` ends moves that were interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from threading import Event

from sqlalchemy import Connection

from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.leases import Lease
from flows.core.programs import command
from flows.core.progress import State as Shown
from flows.core.progress import report
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.migrations.journal import Journal
from flows.migrations.move import (
    LOOK_AGE,
    Consent,
    Do,
    End,
    Entry,
    GiveUp,
    Move,
    Next,
    Phase,
    Seen,
    Undo,
    committed,
    decide,
    downtime,
    given_up,
)
from flows.migrations.move_steps import FINAL, Code, State, StepName
from flows.migrations.planning.plan import moved
from flows.migrations.planning.rollout import Action, Decision, Reason, RolloutStatus
from flows.migrations.results import Deferred, Result
from flows.migrations.rollouts.store import Rollouts
from flows.migrations.steps import previous_containers, unattended
from flows.migrations.steps.effects import Steps
from flows.migrations.steps.failure_attribution import puts_off
from flows.migrations.steps.others import seen_of
from flows.publishing.publish import access_of
from flows.publishing.signatures import Publications
from flows.sessions.gpus.gpu import NoGpu
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running, Session
from flows.sessions.others.model import owner_of
from flows.sessions.store import record
from flows.sessions.wishes import caller

logger = logging.getLogger("refit.migrations")

# The steps after which the world is known for an instant.
WHILE_AWAY = frozenset({StepName.look, StepName.stop, StepName.snapshot, StepName.revert, StepName.start})
LEFT = "its run was told to end"


class MoveExecutor:
    """Carries moves out, one per session at a time."""

    def __init__(self, settings: Settings, sessions: Sessions, journal: Journal) -> None:
        self._settings, self.sessions, self.journal = settings, sessions, journal
        self._access = cache(partial(access_of, registry=Registry(settings)))  # what a digest stands for stays
        self._publications = Publications(settings, journal.database)
        self.steps = Steps(settings, sessions, journal)
        self._seen: dict[str, Seen] = {}
        self._leaves = Event()
        self._logs = settings.folder("logs", "moves")

    @classmethod
    def open(cls, settings: Settings) -> MoveExecutor:
        """The executor for the sessions of these settings."""
        database = open_database(settings.database)
        return cls(settings, Sessions.open(settings, database), Journal(database))

    def carry_out(
        self,
        decision: Decision,
        packages: str = "",
        becomes: Callable[[Session], Session] = lambda after: after,
        *,
        back_to: str = "",
        by: str = "",
    ) -> Result:
        """Move one session, or say why it isn't moved; a move that fails is undone.

        Args:
            decision: the line of the plan.
            packages: the changes between the images, in words.
            becomes: gives it other attributes besides its image, its profile for instance.
            back_to: id of the snapshot to which the home goes back; empty: it stays as it is.
            by: the person who wants it; empty: the person who typed the command.

        Raises:
            NotPublished: the new image doesn't count; nothing was begun.
            RefitError: another run holds the session, the image doesn't fit it, or a service fails; nothing was begun.
        """
        stays = Result(decision.session, decision.old, decision.new, packages, None, State.skipped, "")
        if decision.action is not Action.migrate:
            return replace(stays, reason=decision.why)
        with self.sessions.alone(decision.session) as held:
            if (record := self._record(decision.session)) is None:
                return replace(stays, reason="the session was deleted meanwhile")
            before, should_run = record
            if reason := self._outdated(decision, before):
                return replace(stays, reason=reason)
            after = becomes(self._moved(before, decision.new))
            try:
                after = after if before.owned_by else self._equipped(before, after, back_to)
            except NoGpu as error:
                return replace(stays, reason=f"{Reason.gpu.text}; {error.why}")
            begin = partial(self.journal.begin, consent=decision.consent, wave=decision.wave, by=by or caller())
            move = begin(held, before, after, packages, back_to=back_to)
            return self.drive(held, move, (True, should_run))

    def _record(self, name: str) -> tuple[Session, bool] | None:
        """The session of that name, Refit's own or another's, and whether it ought to run; none: there is none."""
        if record := self.sessions.store.find(name):
            return record
        owned = self.steps.context.others.named(name)
        return (owned.session, True) if owned else None

    def _equipped(self, before: Session, after: Session, back_to: str) -> Session:
        """The session with its GPUs, in a container that it has had if one fits.

        Raises:
            NoGpu: there aren't enough.
        """
        after = self.sessions.with_gpus(after)
        after = replace(after, late_home=self.sessions.binds_late(after, before))
        return self._had(after, before, back_to) or after

    def _moved(self, before: Session, image: str) -> Session:
        """The session in its next container; a rollback may leave it the image that it has, whatever counts now."""
        if image == before.image:
            return moved(before, image, None)
        self._publications.require(image)
        return moved(before, image, self._access(image))

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Begin no further step, and go back, once the `with` block is left since this process was told to end."""
        with command.terminating_children():
            try:
                yield
            except Exception:
                raise
            except BaseException:
                self._leaves.set()  # before anything that runs is ended
                raise

    def _had(self, after: Session, before: Session, back_to: str) -> Session | None:
        """The session in a container that it has had and that is as it was made, if that fits.

        One that goes to another machine has had none there.
        """
        if after.image == before.image and not back_to:
            return None
        had = previous_containers.had(after, self.steps.context.containers(before.name), before.generation)
        return None if had is None or self.sessions.engine.by_hand(had) else had

    def _outdated(self, decision: Decision, session: Session) -> str:
        """The change since the plan was made; empty: none that matters."""
        last = self.journal.last(decision.session)
        if session.image != decision.old:
            return "it was given another image meanwhile"
        if not session.owned_by and (changes := self.sessions.engine.by_hand(session)):
            return f"its container was changed by hand: {some(changes)}"
        way = Rollouts(self.journal.database).way(decision.new)
        relocates = decision.new == decision.old
        if way is not RolloutStatus.running and not (decision.agreed or relocates):
            return f"the rollout is {way}"
        return "its last move is unfinished" if last and last.state not in FINAL - {State.held} else ""

    def unseen(self, move: Move) -> Code | None:
        """The event that may have happened in the new container since the last line; none: there is none."""
        entries = self.journal.entries(move)
        if move.before.owned_by or not unattended.begun(entries, StepName.start):
            return None
        containers = self.steps.context.containers(move.before.name)
        return unattended.since(entries, next((each for each in containers if each.name == move.after.container), None))

    def drive(self, held: Lease, move: Move, recorded: tuple[bool, bool]) -> Result:
        """Take the next step until there is none.

        Nobody else changes the record (`recorded`) for as long as this run holds the session.
        """
        interrupted: BaseException | None = None
        while not isinstance(chosen := self._next(move, recorded), End):
            try:
                self._turn(held, move, chosen)
            except (KeyboardInterrupt, SystemExit) as error:
                if interrupted:
                    raise
                interrupted = error  # the way back is short, and somebody waits
        result = self._end(held, move, chosen)
        if interrupted:
            raise interrupted
        return result

    def _next(self, move: Move, recorded: tuple[bool, bool]) -> Next:
        """The next step; a run that was told to end goes back, unless the session is on its new image for good."""
        chosen = self._decide(move, recorded)
        if not self._leaves.is_set() or not isinstance(chosen, Do) or committed(self.journal.entries(move)):
            return chosen
        return GiveUp(chosen.step, Phase.deferred, LEFT)

    def _turn(self, held: Lease, move: Move, chosen: Do | Undo | GiveUp) -> None:
        if isinstance(chosen, GiveUp):
            self.journal.write(held, move, Entry(chosen.step.name, chosen.phase, chosen.reason))
            return
        name = chosen.step.name if isinstance(chosen, Do) else chosen.undo
        report(move.before.name, Shown.running, name)
        self.journal.write(held, move, Entry(name, Phase.intent))
        try:
            with command.logged(self._logs / f"{move.before.name}.log"):
                outcome = self.steps.perform(name, move)
        except Deferred as error:
            self.journal.write(held, move, Entry(name, Phase.deferred, error.what))
            return
        except BaseException as error:
            self.journal.write(held, move, self._failed(move, name, error))
            if not isinstance(error, RefitError):
                logger.exception("%s: the step %r failed", move.id, name)
            if not isinstance(error, Exception):
                raise
            return

        def commit(connection: Connection) -> None:
            record(connection, move.after)

        done = Entry(name, Phase.done, outcome.note, code=outcome.code, data=outcome.data)
        if name is StepName.commit and not move.after.owned_by:
            self.journal.write(held, move, done, commit)
        else:
            self.journal.note(held, move, done)

    def _failed(self, move: Move, step: str, error: BaseException) -> Entry:
        why = str(error) or type(error).__name__
        if self._leaves.is_set() or isinstance(error, KeyboardInterrupt | SystemExit):  # and what ran with it
            entries = self.journal.entries(move)
            forward = not given_up(entries) and not committed(entries)
            return Entry(step, Phase.deferred if forward else Phase.interrupted, LEFT)
        if puts_off(step, error, move, self.journal.history(move.before.name)):
            return Entry(step, Phase.deferred, f"it couldn't be moved just now: {why}", code=Code.put_off)
        return Entry(step, Phase.failed, why)

    def _end(self, held: Lease, move: Move, end: End) -> Result:
        kept = next((entry.note for entry in self.journal.entries(move) if entry.code is Code.home_kept), "")
        advice = self._advice(move) if end.state is State.held else ""
        restored = self._restored_home(move) if end.state is State.cleaned else ""
        reason = "\n".join(filter(None, (end.reason, kept, advice, restored)))
        damaged = end.state is State.held or bool(kept)
        ended = self.journal.end(held, move, end.state, reason, code=end.code, damaged=damaged)
        if (move.before.gpus or move.after.gpus) and end.state is not State.held:
            self.sessions.settle_gpus(move.before.name)
        done = end.state in (State.cleaned, State.deferred)
        message = f"{end.state}: {end.reason}" if self._leaves.is_set() and end.reason else end.state
        report(move.before.name, Shown.done if done else Shown.failed, message)
        return self.result(ended)

    def _restored_home(self, move: Move) -> str:
        """Where a rollback has left the home as it was before."""
        lines = (each.note for each in self.journal.entries(move) if each.step == StepName.revert and each.note)
        return next(lines, "")

    def result(self, move: Move) -> Result:
        """The result of a move that has ended, by the journal."""
        down = downtime(self.journal.entries(move))
        before, after = move.before, move.after
        how, why = move.state, move.reason
        return Result(
            before.name,
            before.image,
            after.image,
            move.packages,
            down,
            how,
            why,
            damaged=move.damaged,
            put_off=move.code is Code.put_off,
        )

    def _advice(self, move: Move) -> str:
        if move.before.owned_by:
            return f"Look at the {owner_of(move.before)}, then `refit migrate recover {move.before.name}`."
        containers = f"the containers {move.before.container} and {move.after.container}"
        if self.sessions.homes.keeps_snapshots:
            containers += f" and the snapshot {self.sessions.homes.snapshot_place(move.before.name, move.id)}"
        return (
            f"Nothing was removed: {containers} are as they were left. "
            f"Mend the cause, then `refit migrate recover {move.before.name}`."
        )

    def _decide(self, move: Move, recorded: tuple[bool, bool]) -> Next:
        entries = self.journal.entries(move)
        if given_up(entries) or committed(entries):  # only that matters then which is on record
            return decide(entries, Seen(*recorded, old=None, new=None))
        return decide(entries, self._foreseen(move, entries) or self._look(move, entries, recorded))

    def _foreseen(self, move: Move, entries: Sequence[Entry]) -> Seen | None:
        """The state of the world while people wait, without asking the engine, which takes longer than the steps.

        This run has just seen or done it itself; an old container that gets started meanwhile finds no home in its
        slot. None: the engine has to be asked.
        """
        last, seen = next(reversed(entries), None), self._seen.get(move.id)
        if seen is None or last is None or last.phase is not Phase.done or last.step not in WHILE_AWAY:
            return None
        old = seen.old if last.step == StepName.look else Running.stopped
        return replace(seen, old=old, fresh=_is_fresh(entries))

    def on_record(self, move: Move) -> tuple[bool, bool]:
        """Whether the session is on record as it was when the move was planned, and whether it ought to run then."""
        if move.before.owned_by:  # its owner is asked at each step
            return True, True
        session, should_run = self.sessions.store.find(move.before.name) or (None, False)
        return session == move.before, session == move.before and should_run

    def _look(self, move: Move, entries: Sequence[Entry], recorded: tuple[bool, bool]) -> Seen:
        before, after = move.before, move.after
        if before.owned_by:
            return seen_of(self.steps.context, move, fresh=_is_fresh(entries))
        containers = {container.name: container for container in self.steps.context.containers(before.name)}
        fresh, again = _is_fresh(entries), _started_again(containers.get(before.container), entries)
        old, new = (
            containers[name].running if name in containers else None for name in (before.container, after.container)
        )
        seen = Seen(*recorded, old, new, fresh, starts=move.consent is Consent.starts, again=again)
        seen = replace(seen, reverts=bool(move.back_to))
        if before.late_home:
            self._seen[move.id] = seen
        return seen


def _is_fresh(entries: Sequence[Entry]) -> bool:
    """Whether the last look is young enough for a stop."""
    looks = [entry.at for entry in entries if (entry.step, entry.phase) == (StepName.look, Phase.done) and entry.at]
    return bool(looks) and now() - looks[-1] <= LOOK_AGE


def _started_again(old: Container | None, entries: Sequence[Entry]) -> bool:
    """Whether somebody has started the old container since its stop began."""
    begun = unattended.begun(entries, StepName.stop)
    return bool(begun and old and old.started and old.started > begun)
