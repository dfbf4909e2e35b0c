"""One session's migration as a state machine. Pure: the journal so far and what is seen now give the next step.

The same `decide` is asked before every step of an undisturbed move and after a crash, so there is one way through and
recovery is not a special case. A step is made so that doing it again ends in the same place ("make it so").

    planned → preflight → staged → locked → stopped → snapshotted → started → verified → committed → cleaned

After any failure before the commit, the move is undone in reverse order, for the steps that have an intent in the
journal. The old container is proven before anything of the new one is removed. After the commit only the cleaning is
left. A session in which the last look finds work is deferred: the staged container goes, and nothing of the session was
touched.

A rollback is a move, too: between the snapshot of the home as it is and the start of the new container, the home
becomes what it was in an earlier snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from flows.migrations.move_steps import _LOOK, REVERT, STEPS, Code, State, Step, StepName
from flows.sessions.model import Running, Session

ATTEMPTS = 3
# A session is stopped only as long as the last look at it is younger than this.
LOOK_AGE = timedelta(seconds=30)


class Phase(StrEnum):
    """The state of a step in the journal."""

    intent = "intent"
    done = "done"
    failed = "failed"
    skipped = "skipped"
    deferred = "deferred"
    interrupted = "interrupted"
    reopened = "reopened"


class Consent(StrEnum):
    """Why a session may be stopped whatever works in it."""

    agreed = "agreed"
    forced = "forced"
    starts = "starts"

    @property
    def text(self) -> str:
        """The same, for people."""
        return _CONSENTS[self]


_CONSENTS = {
    Consent.agreed: "it was agreed to",
    Consent.forced: "its deadline has come",
    Consent.starts: "its owner starts it",
}


# How a move ends that was given up so.
_GIVEN_UP = {Phase.failed: State.rolled_back, Phase.skipped: State.skipped, Phase.deferred: State.deferred}


@dataclass(frozen=True)
class Entry:
    """One line of the journal: a step or an undo that begins or has ended, or a move that was reopened.

    Attributes:
        step: name of the step, or of what undoes it.
        phase: the state of the step after it.
        note: more of that, for people; nothing is decided by it.
        at: when it was written.
        code: a fact for later decisions; none: there is none.
        data: its results for later steps, as JSON; empty: there are none.
    """

    step: str
    phase: Phase
    note: str = ""
    at: datetime | None = field(default=None, compare=False)
    code: Code | None = None
    data: str = ""


@dataclass(frozen=True)
class Seen:
    """The state of the world.

    Attributes:
        session: the session is there, as it was when the move was planned.
        should_run: its owner wants it to run.
        old: its old container; none: not there.
        new: its new container.
        fresh: the last look at it is so young that it may be stopped.
        starts: its owner starts it just now, and it is moved before; so its old container doesn't run.
        again: somebody has started its old container since its stop began.
        reverts: the move is a rollback to a snapshot of the home.
    """

    session: bool
    should_run: bool
    old: Running | None
    new: Running | None
    fresh: bool = True
    starts: bool = False
    again: bool = False
    reverts: bool = False


@dataclass(frozen=True)
class Do:
    """Carry this step out."""

    step: Step


@dataclass(frozen=True)
class Undo:
    """Undo this step by that."""

    step: Step
    undo: StepName


@dataclass(frozen=True)
class GiveUp:
    """Write into the journal that the move is given up at this step, `failed` or `skipped`; then ask again."""

    step: Step
    phase: Phase
    reason: str


@dataclass(frozen=True)
class End:
    """The move rests in this final state, for a reason in words, and for what decisions about others rest on."""

    state: State
    reason: str = ""
    code: Code | None = None


Next = Do | Undo | GiveUp | End


def decide(entries: Sequence[Entry], seen: Seen) -> Next:
    """The next thing to do, by the journal and by the state of the world."""
    if committed(entries):
        return _finish(entries)
    if given_up(entries):
        return _back(entries, seen)
    done = {entry.step for entry in entries if entry.phase is Phase.done}
    step = next(step for step in STEPS if step.name not in done and (seen.reverts or step is not REVERT))
    if step.name is StepName.stop and not seen.fresh and not _has(entries, StepName.stop, Phase.intent):
        step = _LOOK  # whoever was killed between the look and the stop knows nothing any more
    return _obstacle(step, entries, seen) or Do(step)


def state(entries: Sequence[Entry]) -> State:
    """The state that the journal's lines amount to, before the move has ended."""
    if given_up(entries) and not committed(entries):
        return State.rolling_back
    done = (step.reaches for step in STEPS if _has(entries, step.name, Phase.done))
    return max(done, key=list(State).index, default=State.planned)


def leads_to(entry: Entry) -> State | None:
    """The state that a move is in after this line, if the line by itself changes it; see `state`."""
    step = next((step for step in STEPS if step.name == entry.step), None)
    if step is None:
        return None
    if entry.phase in _GIVEN_UP and step is not STEPS[-1]:
        return State.rolling_back
    return step.reaches if entry.phase is Phase.done else None


def given_up(entries: Sequence[Entry]) -> Entry | None:
    """The line with which the move was given up: the first step that failed, or the reason to skip or defer it."""
    forward = {step.name for step in STEPS}
    return next((e for e in entries if e.step in forward and e.phase in _GIVEN_UP), None)


def has_code(entries: Sequence[Entry], code: Code) -> bool:
    """Whether a line of the journal has this code."""
    return any(entry.code is code for entry in entries)


def committed(entries: Sequence[Entry]) -> bool:
    """Whether the session is on its new image for good; then nothing counts any more of what the world says."""
    return _has(entries, StepName.commit, Phase.done)


def _finish(entries: Sequence[Entry]) -> Next:
    clean = STEPS[-1]
    if _has(entries, clean.name, Phase.done):
        return End(State.cleaned)
    if problem := _stuck(entries, clean.name):
        return End(State.held, f"it runs on the new image, but the old container is still there: {problem}")
    return Do(clean)


def _back(entries: Sequence[Entry], seen: Seen) -> Next:
    cause = given_up(entries)
    assert cause
    for step in reversed(STEPS):
        if step.undo is None or not _to_be_undone(step, step.undo, entries, seen):
            continue
        if problem := _stuck(entries, step.undo):
            return End(State.held, f"{cause.note}; going back failed at {str(step.undo)!r}: {problem}")
        return Undo(step, step.undo)
    return End(_GIVEN_UP[cause.phase], cause.note, cause.code)


def _to_be_undone(step: Step, undo: StepName, entries: Sequence[Entry], seen: Seen) -> bool:
    if not _has(entries, step.name, Phase.intent) or _has(entries, undo, Phase.done):
        return False
    if undo is StepName.reinstate:
        return seen.session
    if undo is StepName.restore:
        # Without a start nothing new has touched the home, and the snapshot may be half made; a rollback reinstates.
        reverted = _has(entries, StepName.revert, Phase.intent)
        return seen.session and _has(entries, StepName.start, Phase.intent) and not reverted
    return undo not in (StepName.rewarm, StepName.revive) or (seen.session and seen.should_run)


def _obstacle(step: Step, entries: Sequence[Entry], seen: Seen) -> GiveUp | None:
    """The reason to give up: an action of other people that must be respected, or too many interruptions."""
    stopping, stopped = _has(entries, StepName.stop, Phase.intent), _has(entries, StepName.stop, Phase.done)
    if not seen.session:
        return GiveUp(step, Phase.skipped, "the session was deleted meanwhile")
    if not seen.should_run or (not stopping and seen.old is not Running.running and not seen.starts):
        return GiveUp(step, Phase.skipped, "the session was stopped meanwhile")
    # The person who has started it may work in it by now, also where nobody wrote down that it was stopped before.
    if (stopped or seen.again) and seen.old is Running.running:
        return GiveUp(step, Phase.failed, "the old container was started by somebody else during the move")
    if _attempts(entries, step.name) >= ATTEMPTS:
        return GiveUp(step, Phase.failed, f"{str(step.name)!r} was interrupted {ATTEMPTS} times")
    return None


def _stuck(entries: Sequence[Entry], name: StepName) -> str:
    """Why this step is not tried again; empty if it is. Reopening a move forgets what went wrong before."""
    reopened = max((i for i, entry in enumerate(entries) if entry.phase is Phase.reopened), default=-1)
    recent = [entry for entry in entries[reopened + 1 :] if entry.step == name]
    if failed := next((entry for entry in recent if entry.phase is Phase.failed), None):
        return failed.note
    return f"it was interrupted {ATTEMPTS} times" if _attempts(recent, name) >= ATTEMPTS else ""


def unsettled(entries: Sequence[Entry]) -> str:
    """The name of the step whose outcome nobody wrote down; empty if there is none."""
    last = next(reversed(entries), None)
    return last.step if last and last.phase is Phase.intent else ""


def _attempts(entries: Sequence[Entry], name: str) -> int:
    return sum(entry.step == name and entry.phase is Phase.intent for entry in entries)


def _has(entries: Sequence[Entry], name: str, phase: Phase) -> bool:
    return any(entry.step == name and entry.phase is phase for entry in entries)


@dataclass(frozen=True)
class Move:
    """One session's migration.

    Attributes:
        id: the session's name, the new generation, and something unique.
        before: the session as it was, with its old image.
        after: the session as it shall be: another image, the next generation.
        packages: the changes, in words.
        state: where the move was when it was read.
        reason: why it ended as it did, in words.
        code: of that, what decisions about other moves rest on; none: nothing.
        created: when it was planned.
        consent: why it may be stopped whatever works in it; none: it may only while nothing does.
        wave: the number of its wave; none: a person named it.
        damaged: it could not be undone, or the home isn't as it was.
        ended: when it ended; none: it has not.
        back_to: id of the snapshot to which the home goes back; empty: it stays as it is.
    """

    id: str
    before: Session
    after: Session
    packages: str
    state: State
    reason: str
    created: datetime
    consent: Consent | None = None
    wave: int | None = None
    damaged: bool = False
    ended: datetime | None = None
    code: Code | None = None
    back_to: str = ""

    @property
    def relocates(self) -> bool:
        """Whether the session keeps its image and its home, and goes to another machine, where it has other GPUs."""
        after = self.after
        return not self.back_to and after == replace(
            self.before, generation=after.generation, late_home=after.late_home, devices=after.devices
        )


@dataclass(frozen=True, slots=True)
class Past:
    """The part of an earlier move that a plan needs, of which there may be tens of thousands; see `Move`.

    Attributes:
        image: digest of the image that the session was to get.
    """

    id: str
    session: str
    image: str
    state: State
    created: datetime
    wave: int | None
    damaged: bool
    ended: datetime | None


def downtime(entries: Sequence[Entry]) -> float | None:
    """Seconds from the request to stop until the IDE answered again; none if that didn't happen."""
    stopped = _moment(entries, StepName.stop, Phase.intent)
    ready = _moment(entries, StepName.revive, Phase.done) or _moment(entries, StepName.answer, Phase.done)
    return (ready - stopped).total_seconds() if stopped and ready else None


def _moment(entries: Sequence[Entry], step: str, phase: Phase) -> datetime | None:
    return next((entry.at for entry in entries if (entry.step, entry.phase) == (step, phase)), None)
