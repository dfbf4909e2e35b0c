"""A migration that goes on: plan, move those whose time has come, and look again when something else is due.

It keeps no state of its own: a process that is killed and begins anew goes on from what database and journal say. It
imports neither Prefect nor a clock.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.settings.policy import RolloutPolicy
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.migrations.results import Result

logger = logging.getLogger("refit.migrations")

# A session without a seat for so many slots waits for the next plan: by then its hours may be over.
ROUNDS = 20
# A part of a wave: as many as are moved before it is planned again.
PART = 20
_Wave = tuple[str, int | None]  # of the rollout of an image
_OVER = {Reason.aborted, Reason.superseded}


class Clock(Protocol):
    """The time."""

    def now(self) -> datetime:
        """The present moment, UTC."""

    def wait(self, until: datetime) -> None:
        """Return at that moment, or as soon as something has happened that a plan depends on."""


class Migration(Protocol):
    """The effects of a migration, called by `reconcile`."""

    @property
    def part(self) -> int:
        """How many sessions are moved at most between two plans."""

    def plan(self) -> Sequence[Decision]:
        """Decide for all sessions, with what is known now."""

    def move(self, number: int, decisions: Sequence[Decision]) -> Sequence[Result]:
        """Carry out the moves of a part, which has a number; those that don't begin stay planned."""

    def rest(self, decisions: Sequence[Decision], until: datetime | None) -> None:
        """Take a plan by which no session can move just now; the next one comes at `until` or earlier (none: never)."""


class FailureBudget:
    """Why moves of a part don't begin any more; asked by all who carry it out.

    Of a part as many percent may fail as of a wave. The next plan tells the consequences of more of them for the wave.
    """

    def __init__(
        self,
        part: Iterable[Decision],
        failures: float = 100,
        superseded: Callable[[Decision], bool] = lambda _: False,
    ) -> None:
        """FailureBudget about a part.

        Args:
            part: the decisions about the sessions to be moved.
            failures: how many percent of them may fail.
            superseded: whether there is a newer image for a session than it is to get.
        """
        self._most = {wave: failures * size / 100 for wave, size in Counter(map(_wave, part)).items()}
        self._superseded = superseded
        self._failed: dict[_Wave, list[str]] = defaultdict(list)
        self._damaged: list[str] = []

    def note(self, line: Decision, result: Result) -> None:
        """Remember how a move has ended."""
        if result.state in (State.rolled_back, State.held):
            self._failed[_wave(line)].append(line.session)
        if result.damaged and not result.moved:
            self._damaged.append(f"{line.session} is {result.state}")

    def about(self, line: Decision) -> str:
        """Why this move isn't to begin before somebody has looked; empty: it may."""
        if self._damaged:
            return f"{self._damaged[0]}, and its home may be damaged: first look at that one"
        failed = self._failed[_wave(line)]
        if len(failed) > self._most[_wave(line)]:
            return f"others of its wave have failed: {some(failed)}"
        return Reason.superseded.text if self._superseded(line) else ""


def reconcile(migration: Migration, clock: Clock, policy: RolloutPolicy, *, once: bool = False) -> tuple[Result, ...]:
    """Move each session as soon as it may be moved, until none is left, or for `max_run_hours`.

    Args:
        migration: plans and moves.
        clock: tells the time, and waits.
        policy: how often it is looked, and for how long.
        once: don't wait for anything.

    Returns:
        The result of each session, by name.
    """
    start = clock.now()
    end, pause = start + timedelta(hours=policy.max_run_hours), timedelta(minutes=policy.poll_minutes)
    results: dict[str, Result] = {}
    rests: dict[str, datetime] = {}
    parts, patience = 0, start  # what can't be planned at all is told at once
    while True:
        decisions = _plan(migration, clock, pause, patience)
        now, patience = clock.now(), start if once else end
        going = [line for line in due(decisions, now, policy) if rests.get(line.session, now) <= now][: migration.part]
        if going:
            parts += 1
            done = [result for result in migration.move(parts, going) if result.state is not State.planned]
            results |= {result.session: result for result in done}
            # For any other reason, too: it isn't tried again and again.
            rests |= {result.session: clock.now() + pause for result in done if not result.moved}
            continue
        then = None if once or now >= end else next_look(decisions, now, policy)
        migration.rest(decisions, then and min(then, end))
        if then is None:
            states = {line.session: foreseen(line) for line in decisions} | results
            return tuple(states[name] for name in sorted(states))
        clock.wait(min(then, end))


def _plan(migration: Migration, clock: Clock, pause: timedelta, until: datetime) -> Sequence[Decision]:
    """The plan, as soon as there can be one: a registry may be away for a while."""
    while True:
        try:
            return migration.plan()
        except RefitError as error:
            if clock.now() >= until:
                raise
            logger.warning("nothing can be planned just now: %s", error)
            clock.wait(clock.now() + pause)


def due(decisions: Iterable[Decision], now: datetime, policy: RolloutPolicy) -> list[Decision]:
    """Those whose time has come, in their order. Pure."""
    soon = now + timedelta(seconds=ROUNDS * policy.move_seconds)
    ready = [
        (line.wave or 0, line.at, line.session, line)
        for line in decisions
        if line.action is Action.migrate and line.at and line.due and line.due < now + timedelta(seconds=1)
        if line.at <= soon and not (line.forced and line.deadline and now < line.deadline)
    ]
    return [line for *_, line in sorted(ready, key=lambda candidate: candidate[:3])]


def next_look(decisions: Iterable[Decision], now: datetime, policy: RolloutPolicy) -> datetime | None:
    """When it is to be planned again; none: there is nobody left who might move. Pure."""
    waiting = [line for line in decisions if line.action is not Action.skip and line.reason not in _OVER]
    if not waiting:
        return None
    # A newer image, and the end of what makes a session busy, are found by looking.
    times = [line.due for line in waiting if line.due and line.due > now]
    return min([*times, now + timedelta(minutes=policy.poll_minutes)])


def _wave(line: Decision) -> _Wave:
    return line.new, line.wave


def foreseen(decision: Decision) -> Result:
    """The result for a session as a plan foresees it."""
    state = State.planned if decision.action is Action.migrate else State.skipped
    return Result(decision.session, decision.old, decision.new, "", None, state, decision.why)
