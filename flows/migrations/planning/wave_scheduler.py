"""A plan for all sessions: who moves in which slot, wave by wave. Pure.

Within a wave those come first whose deadline does. A session that can be moved gets the first slot in which its hours
and all caps let it; one that can't, the first from its deadline on, if there is one: nobody is forced before.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, takewhile

from flows.core.settings.policy import SessionPolicy
from flows.migrations.planning import wave_gates
from flows.migrations.planning.eligibility import Case, Place, pull_hours, why_not
from flows.migrations.planning.move_terms import terms, zone_of
from flows.migrations.planning.rollout import (
    BLOCKING,
    Action,
    Candidate,
    Decision,
    Gate,
    Health,
    PlanInput,
    Reason,
    RolloutStatus,
)
from flows.migrations.planning.timetable import Calendar, Capacity, first

_NEVER = sys.maxsize
Judge = Callable[[Mapping[tuple[str, int], int]], Mapping[tuple[str, int], Gate]]
"""Told image and wave → how many are left in it, and can be moved in time: the state of the waves."""
_RESTING = {
    RolloutStatus.paused: Reason.paused,
    RolloutStatus.aborted: Reason.aborted,
    RolloutStatus.superseded: Reason.superseded,
}


class WaveScheduler:
    """Plans for all sessions."""

    def __init__(
        self,
        rollout: PlanInput,
        candidates: Iterable[Candidate],
        judge: Judge | None = None,
        begun: int = wave_gates.VOLUNTEERS - 1,
    ) -> None:
        """Plan.

        Args:
            rollout: the facts that the sessions share.
            candidates: the sessions.
            judge: finds the gates; none: those of the rollout hold.
            begun: the last wave of which it wants to know who is left.
        """
        self._rollout, self._policy, self._length = rollout, rollout.policy, rollout.policy.move_seconds
        self._candidates = {candidate.session.name: candidate for candidate in candidates}
        self._calendars: dict[tuple[object, ...], tuple[SessionPolicy, Calendar]] = {}
        self._pulls = {name: pull_hours(host) for name, host in rollout.hosts.items()}
        self._begin(judge, begun)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One line for every session, by name."""
        return tuple(self._lines[name] for name in sorted(self._lines))

    def _begin(self, judge: Judge | None, begun: int) -> None:
        self._lines: dict[str, Decision] = {}
        self._places: dict[str, Place] = {}
        self._starts: dict[tuple[str, int], dict[str, int]] = {}
        self._seats: dict[tuple[str, str], Capacity] = {}
        self._gpus = {name: host.gpus for name, host in self._rollout.hosts.items() if host.gpus is not None}
        self._reserve(self._candidates.values())
        cases = self._cases(self._candidates.values())
        if judge:
            gates = judge(self._left(takewhile(lambda case: case.wave <= begun, cases)))
            self._rollout = replace(self._rollout, gates=gates)
        self._settle(cases)

    # Facts about each session.

    def _cases(self, candidates: Iterable[Candidate]) -> list[Case]:
        """Those that are to move, in the order in which they are served; the lines of the others are written."""
        cases = []
        for candidate in candidates:
            session = candidate.session
            key = session.profile, session.release
            new, refused = self._rollout.targets.get(key, ""), self._rollout.refused.get(key, "")
            if reason := why_not(candidate, new, refused):
                detail = refused if reason is Reason.refused else ""
                line = Decision(session.name, Action.skip, session.image, new, reason, detail)
                self._lines[session.name] = line
            else:
                cases.append(self._case(candidate, new))
        return sorted(cases, key=lambda case: case.order)

    def _case(self, candidate: Candidate, new: str) -> Case:
        agreed = terms(candidate, new, self._rollout)
        place = wave_gates.position(candidate.session.name, new)
        pull = self._pulled(candidate, new)
        ready, reason = (pull, Reason.pull) if pull > agreed.ready else (agreed.ready, agreed.reason)
        return Case(
            candidate=candidate,
            new=new,
            terms=agreed,
            wave=self._wave(candidate, place, agreed.free),
            place=place,
            least=max(agreed.least, pull),
            ready=ready,
            reason=reason,
            calendar=self._calendar(candidate, hours=not agreed.free),
            seats=self._seats_of(candidate),
        )

    def _wave(self, candidate: Candidate, place: float, free: bool) -> int:
        if candidate.wish.volunteer or free:
            return wave_gates.VOLUNTEERS
        return 1 if candidate.session.name in self._rollout.canaries else wave_gates.wave(place, self._policy.waves)

    def _pulled(self, candidate: Candidate, new: str) -> int:
        """When the image is on the host; never, if there is no room for it."""
        seconds = self._pulls.get(candidate.host, {}).get(new, 0.0)
        return _NEVER if seconds is None else math.ceil(self._rollout.now.timestamp() + seconds)

    def _calendar(self, candidate: Candidate, hours: bool) -> Calendar:
        policy, wish = candidate.policy, candidate.wish
        # Many have the same policy, and most no hours of their own: that is found out sooner than what both say.
        key = (id(policy), wish.time_zone, wish.quiet, hours)
        if key not in self._calendars:
            windows, quiet = (policy.windows, (*policy.quiet, *wish.quiet)) if hours else ((), ())
            calendar = Calendar(zone_of(candidate), self._policy.freezes, windows, quiet, length=self._length)
            self._calendars[key] = policy, calendar  # the policy, so that no other gets its id
        return self._calendars[key][1]

    def _seats_of(self, candidate: Candidate) -> tuple[Capacity, ...]:
        caps, session = self._policy.unavailable, candidate.session
        kinds = (
            ("rollout", "all", caps.rollout),
            ("host", candidate.host, caps.host),
            ("owner", candidate.owner, caps.owner),
            ("profile", session.profile, caps.profile),
        )
        return tuple(self._seat(kind, name, cap) for kind, name, cap in kinds if cap and name)

    def _seat(self, kind: str, name: str, cap: int) -> Capacity:
        if (kind, name) not in self._seats:
            self._seats[kind, name] = Capacity(cap)
        return self._seats[kind, name]

    # Distribution of the slots.

    def _reserve(self, candidates: Iterable[Candidate]) -> None:
        """Take the seats of those that are away now, more than there are if need be."""
        for candidate in candidates:
            if candidate.away_since:
                for seats in self._seats_of(candidate):
                    for slot in self._slots_away(candidate):
                        seats.take(slot)

    def _slots_away(self, candidate: Candidate) -> range:
        assert candidate.away_since
        now = int(self._rollout.now.timestamp())
        back = int(candidate.away_since.timestamp()) + self._length - 1
        # One that is away for longer than was foreseen will be so for a while.
        return range(now // self._length, max(back // self._length, self._slot(now)) + 1)

    def _leave(self, name: str) -> None:
        """Give back what a session has taken from others."""
        place = self._places.pop(name)
        for seats in place.seats:
            seats.give(place.slot)
        self._starts[place.wave].pop(name)
        if place.host in self._gpus:
            self._gpus[place.host] += place.gpus

    def _left(self, cases: Iterable[Case]) -> Counter[tuple[str, int]]:
        """Image and wave → how many are still to be moved, and can be in time, were there no gates."""
        self._settle(cases, self._foresee)
        patience = self._rollout.now.timestamp() + self._policy.wave_hours * 3600
        left = Counter(place.wave for place in self._places.values() if place.slot * self._length < patience)
        for name in tuple(self._places):
            self._leave(name)
        return left

    def _settle(self, cases: Iterable[Case], decide: Callable[[Case, int], None] | None = None) -> None:
        """Decide for sessions in their order; those before them stand already."""
        decide = decide or self._decide
        for wave, members in groupby(cases, key=lambda case: case.wave):
            begins: dict[str, int] = {}
            for case in members:
                if case.new not in begins:
                    begins[case.new] = self._begins(case.new, wave)
                decide(case, begins[case.new])

    def _begins(self, image: str, wave: int) -> int:
        """When a wave begins, as far as can be foreseen; nobody waits longer than `wave_hours` for the one before."""
        begins, bake = self._now, self._policy.bake_minutes * 60
        for earlier in range(wave):
            gate = self._rollout.gates.get((image, earlier))
            if gate and gate.health is Health.passed:
                continue
            patience = begins + self._policy.wave_hours * 3600
            slots = self._starts.get((image, earlier), {}).values()
            inside = max((slot for slot in slots if slot * self._length < patience), default=None)
            if inside is not None:
                begins = max(begins, math.ceil((inside + 1) * self._length + bake))
            elif gate:
                begins = max(begins, math.ceil(gate.since.timestamp() + bake))
        return begins

    def _decide(self, case: Case, begins: int) -> None:
        _, write = self._choose(case, begins)
        write()

    def _foresee(self, case: Case, begins: int) -> None:
        """Take what a session would get, without a word."""
        slot, _ = self._choose(case, begins)
        if slot is not None:
            self._take(case, slot)

    def _choose(self, case: Case, begins: int) -> tuple[int | None, Callable[[], None]]:
        """When a session moves, and what writes that down."""
        if obstacle := self._obstacle(case):
            return None, partial(self._write, case, Action.wait, *obstacle)
        agreed, slot = case.terms, None
        if not agreed.waits:
            ready = max(case.ready, begins)
            slot = first(self._slot(ready), case.calendar, case.seats)
            if slot is not None and (agreed.deadline is None or slot <= self._slot(agreed.deadline)):
                return slot, partial(self._write_regular, case, slot, ready)
        if agreed.deadline is None:
            return None, partial(self._write, case, Action.wait, agreed.waits or Reason.never, agreed.detail)
        due = max(agreed.deadline, case.least, begins)
        forced = first(self._slot(due), self._days(case), case.seats)
        if forced is not None and forced == self._slot(agreed.deadline):
            return forced, partial(self._write_forced, case, forced, due)
        # As soon as possible then; by force, if nothing else lets it move.
        return forced, partial(self._write_late, case, forced, due, forced=slot is None or forced != slot)

    def _obstacle(self, case: Case) -> tuple[Reason, str] | None:
        """The reason that keeps a session from being moved at any time, and its details."""
        candidate = case.candidate
        if rests := _RESTING.get(self._rollout.ways.get(case.new, RolloutStatus.running)):
            return rests, ""
        if failed := self._gate(case):
            return Reason.gate, failed
        if candidate.blocked and not case.terms.free:
            return Reason.blocked, candidate.blocked
        if case.least == _NEVER:
            return Reason.room, ""
        moves = not case.terms.waits or case.terms.deadline is not None
        if moves and candidate.gpus > self._gpus.get(candidate.host, candidate.gpus):
            return Reason.gpu, self._free_from(candidate.host)
        return None

    def _free_from(self, host: str) -> str:
        """When a GPU is given back, in words; empty: nobody knows."""
        at = self._rollout.hosts[host].gpus_from
        return f"one is free from {at:%Y-%m-%d %H:%M} UTC on" if at else ""

    def _gate(self, case: Case) -> str:
        for wave in range(case.wave + 1):
            gate = self._rollout.gates.get((case.new, wave))
            stops = gate and gate.health in BLOCKING and (wave < case.wave or gate.health is Health.failed)
            if gate and stops:
                return f"{wave_gates.title(wave, self._policy.waves)}: {gate.health.text}"
        return ""

    def _days(self, case: Case) -> Calendar:
        """The days on which a session may be moved by force."""
        return self._calendar(case.candidate, hours=False)

    @property
    def _now(self) -> int:
        return math.ceil(self._rollout.now.timestamp())

    def _slot(self, moment: int) -> int:
        """The first slot that doesn't begin before a moment."""
        return -(-moment // self._length)

    # The decisions.

    def _write_regular(self, case: Case, slot: int, due: int) -> None:
        reason = self._own_reason(case)
        self._write(case, Action.later if reason else Action.migrate, reason, case.terms.detail, slot, due=due)

    def _write_forced(self, case: Case, slot: int, due: int) -> None:
        reason = case.terms.waits or self._own_reason(case)
        self._write(case, self._until(case, slot), reason, case.terms.detail, slot, forced=True, due=due)

    def _write_late(self, case: Case, slot: int | None, due: int, *, forced: bool) -> None:
        action, has_slot = self._until(case, slot) if forced else Action.later, slot is not None
        moment = due if has_slot else None
        self._write(case, action, Reason.late, self._cause(case), slot, forced=forced and has_slot, due=moment)

    def _until(self, case: Case, slot: int | None) -> Action:
        """The action on a session until it is forced; it moves, if that is now."""
        if slot == self._slot(self._now):
            return Action.migrate
        return Action.wait if slot is None or case.terms.waits else Action.later

    def _own_reason(self, case: Case) -> Reason | None:
        """The reason of the session itself that keeps it from moving now."""
        now = self._slot(self._now)
        return case.reason if self._slot(case.ready) > now else case.calendar.why(now)

    def _cause(self, case: Case) -> str:
        """The cause for which a deadline can't be kept."""
        deadline = case.terms.deadline or 0
        if deadline < self._now:
            return "it has passed"
        if case.terms.least > deadline:
            return Reason.pinned.text
        if case.least > deadline:
            return Reason.pull.text
        if self._days(case).after(self._slot(deadline)) != self._slot(deadline):
            return Reason.frozen.text
        return "earlier waves and others come first"

    def _write(
        self,
        case: Case,
        action: Action,
        reason: Reason | None,
        detail: str = "",
        slot: int | None = None,
        *,
        forced: bool = False,
        due: int | None = None,
    ) -> None:
        session, deadline = case.candidate.session, case.terms.deadline
        at = None if slot is None else datetime.fromtimestamp(slot * self._length, UTC)
        self._lines[case.name] = Decision(
            session=session.name,
            action=action,
            old=session.image,
            new=case.new,
            reason=reason,
            detail=detail,
            wave=case.wave,
            at=at,
            deadline=None if deadline is None else datetime.fromtimestamp(deadline, UTC),
            forced=forced,
            agreed=case.terms.free,
            by=case.candidate.by,
            due=at if due is None else datetime.fromtimestamp(due, UTC),
        )
        if slot is not None:
            self._take(case, slot)

    def _take(self, case: Case, slot: int) -> None:
        candidate = case.candidate
        for seats in case.seats:
            seats.take(slot)
        self._starts.setdefault((case.new, case.wave), {})[case.name] = slot
        self._places[case.name] = Place(slot, (case.new, case.wave), case.seats, candidate.host, candidate.gpus)
        if candidate.host in self._gpus:
            self._gpus[candidate.host] -= candidate.gpus
