"""Properties of each plan, whatever the sessions, their owners and the policy are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.core.settings.policy import Freeze, Mode, SessionPolicy, Unavailable
from flows.migrations.planning import wave_gates
from flows.migrations.planning.plan import plan_after
from flows.migrations.planning.rollout import (
    Action,
    Candidate,
    Decision,
    Gate,
    Health,
    Host,
    PlanInput,
    Reason,
    RolloutStatus,
)
from flows.migrations.planning.wave_gates import Trial
from flows.migrations.planning.wave_scheduler import WaveScheduler
from flows.sessions.activity.evidence import Verdict
from flows.sessions.preferences import UpdatePreferences
from tests.support.examples import several
from tests.support.planning import BUSY, DAY, HOUR, NEW, NOW, ZURICH, candidate, rollout

# --- What anybody may want, and what anybody may be -------------------------------------------------------------------

HOURS = st.sampled_from(["22:00-07:00", "mon-fri 09:00-17:00", "sun 01:00-02:30", "12:00-13:00", "sat,sun 00:00-24:00"])
POLICIES = st.builds(
    SessionPolicy,
    mode=st.sampled_from([Mode.when_idle, Mode.when_idle, Mode.ask, Mode.next_start]),
    deadline_days=st.none() | st.sampled_from([0.1, 1, 7]),
    notice_hours=st.sampled_from([0, 1, 24]),
    windows=st.lists(HOURS, max_size=1).map(tuple),
    quiet=st.lists(HOURS, max_size=2).map(tuple),
    time_zone=st.sampled_from(["UTC", ZURICH, "Asia/Kolkata"]),
)
DATES = st.dates(date(2026, 10, 20), date(2026, 11, 5))
MOMENTS = st.integers(-72, 72).map(lambda hours: NOW + hours * HOUR)
WISHES = st.builds(
    lambda mode, until, **rest: UpdatePreferences(mode, until if mode in (Mode.pin, Mode.forced_by) else None, **rest),
    st.none() | st.sampled_from(Mode),
    DATES,
    snoozed_until=st.none() | MOMENTS,
    volunteer=st.booleans(),
    agreed=st.sampled_from(["", "", "", NEW, "sha256:other"]),
)


@st.composite
def candidates(draw: st.DrawFn, name: str) -> Candidate:
    verdict = draw(st.none() | st.sampled_from(Verdict))
    made = candidate(name, verdict)
    away = draw(st.booleans()) and draw(st.booleans()) and draw(st.booleans())
    return replace(
        made,
        session=replace(made.session, profile=draw(st.sampled_from(["p0", "p1"]))),
        running=draw(st.integers(0, 9)) > 0,
        owner=draw(st.sampled_from(["", "ann", "bob"])),
        host=draw(st.sampled_from(["", "h1", "h2"])),
        policy=draw(POLICIES),
        wish=draw(WISHES),
        notified=draw(st.none() | MOMENTS.filter(lambda moment: moment <= NOW)),
        noticed=draw(st.none() | MOMENTS.filter(lambda moment: moment <= NOW)),
        blocked=draw(st.sampled_from(["", "", "", "venv"])),
        gpus=draw(st.sampled_from([0, 0, 1])),
        away_since=NOW - timedelta(seconds=draw(st.integers(0, 3600))) if away else None,
    )


@st.composite
def worlds(draw: st.DrawFn) -> list[Candidate]:
    return [draw(candidates(f"s{number}")) for number in range(draw(st.integers(1, 8)))]


IMPOSSIBLE = {
    *(Reason.blocked, Reason.gpu, Reason.room, Reason.paused, Reason.aborted, Reason.gate, Reason.late),
}
CAPS = st.none() | st.integers(1, 3)
GATES = st.dictionaries(
    st.tuples(st.just(NEW), st.integers(0, 2)),
    st.builds(Gate, st.sampled_from(Health), st.just(NOW - HOUR)),
    max_size=1,
)
HOST = st.builds(
    Host,
    pulls=st.sampled_from([{}, {NEW: 10**9}, {NEW: 10**12}]),
    room=st.none() | st.just(10**11),
    gpus=st.none() | st.integers(0, 2),
)
ROLLOUTS = st.builds(
    lambda hosts, gates, way, **changes: replace(rollout(hosts=hosts, **changes), gates=gates, ways={NEW: way}),
    st.fixed_dictionaries({"h1": HOST, "h2": HOST}),
    GATES,
    st.sampled_from([RolloutStatus.running] * 5 + [RolloutStatus.paused, RolloutStatus.aborted]),
    waves=st.sampled_from([[100], [30, 100], [1, 50, 100]]),
    bake_minutes=st.sampled_from([0, 30]),
    move_seconds=st.sampled_from([30, 60, 600, 3600]),
    unavailable=st.builds(Unavailable, rollout=CAPS, host=CAPS, owner=CAPS, profile=CAPS),
    freezes=st.lists(
        st.builds(lambda day, days: Freeze(first=day, last=day + days * DAY, why="end"), DATES, st.integers(0, 3)),
        max_size=1,
    ),
)


def slots(shared: PlanInput, line: Decision) -> tuple[datetime, datetime]:
    assert line.at
    return line.at, line.at + timedelta(seconds=shared.policy.move_seconds)


def by_name(world: Iterable[Candidate]) -> dict[str, Candidate]:
    return {each.session.name: each for each in world}


def may_be_disturbed(which: Candidate, shared: PlanInput, begin: datetime, end: datetime, *, hours: bool) -> bool:
    """Looked at minute by minute, on the wall's clock."""
    clock = ZoneInfo(which.wish.time_zone or which.policy.time_zone)
    moment = begin
    while moment < end:
        wall = moment.astimezone(clock)
        if any(freeze.first <= wall.date() <= freeze.last for freeze in shared.policy.freezes):
            return False
        inside = [
            any(
                (wall.date() - back * DAY).weekday() in each.days
                and each.start <= wall.hour * 60 + wall.minute + back * 1440 < each.end
                for back in (0, 1)
            )
            for each in (*which.policy.windows, *which.policy.quiet)
        ]
        count = len(which.policy.windows)
        if hours and (any(inside[count:]) or (count and not any(inside[:count]))):
            return False
        moment += timedelta(minutes=1)
    return True


# --- What always holds ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=several(200), deadline=None)
@given(worlds(), ROLLOUTS)
def test_whatever_is_planned_keeps_to_what_was_promised(world: list[Candidate], shared: PlanInput) -> None:
    lines, waves = WaveScheduler(shared, world).decisions, by_name(world)
    no_cap_is_ever_exceeded(world, shared, lines)
    for line in lines:
        which = waves[line.session]
        hours_are_kept_unless_a_deadline_was_told(which, shared, line)
        nobody_who_may_be_busy_moves_without_force_or_consent(which, line)
        nothing_is_lost_by_a_timer_alone(which, shared, line)
        pins_snoozes_and_deadlines_are_kept(which, line, timedelta(seconds=shared.policy.move_seconds))


def no_cap_is_ever_exceeded(world: list[Candidate], shared: PlanInput, lines: Iterable[Decision]) -> None:
    """Counted at the beginning of each move: in between, sessions only come back."""
    sessions, caps = by_name(world), shared.policy.unavailable
    away = [
        (NOW, max(NOW, each.away_since + timedelta(seconds=shared.policy.move_seconds)), each)
        for each in world
        if each.away_since
    ]
    moving = [(*slots(shared, line), sessions[line.session]) for line in lines if line.at]
    for moment, _, _ in moving:
        there = [each for begin, end, each in (*moving, *away) if begin <= moment < end]
        out = {id(each) for begin, end, each in away}
        for cap, kind in (
            (caps.rollout, lambda each: "all"),
            (caps.host, lambda each: each.host),
            (caps.owner, lambda each: each.owner),
            (caps.profile, lambda each: each.session.profile),
        ):
            counted = Counter(kind(each) for each in there if kind(each))
            for name, count in counted.items():
                # Those that are away already may be too many; nobody is added to them then.
                assert cap is None or count <= cap or all(id(each) in out for each in there if kind(each) == name)


def hours_are_kept_unless_a_deadline_was_told(which: Candidate, shared: PlanInput, line: Decision) -> None:
    if line.at:
        free = which.wish.agreed == NEW
        assert may_be_disturbed(which, shared, *slots(shared, line), hours=not (free or line.forced))
        assert not line.forced or (which.notified and line.deadline)
        assert line.at >= shared.now


def nobody_who_may_be_busy_moves_without_force_or_consent(which: Candidate, line: Decision) -> None:
    if which.wish.agreed != NEW and (which.seen is None or which.seen.verdict is BUSY):
        assert line.action in (Action.wait, Action.skip) or line.forced
        assert line.at is None or line.forced
    assert line.action is Action.migrate or line.reason
    assert line.action is not Action.migrate or (line.at and (line.reason is None or line.forced))


def nothing_is_lost_by_a_timer_alone(which: Candidate, shared: PlanInput, line: Decision) -> None:
    if which.wish.agreed != NEW and which.seen and which.seen.verdict is Verdict.state and line.at and not line.forced:
        kept = timedelta(
            hours=shared.idle_state_hours if which.policy.idle_state_hours is None else which.policy.idle_state_hours
        )
        assert line.at >= which.seen.since + kept
        assert which.wish.mode is Mode.when_idle or (which.noticed and line.at >= which.noticed + kept)


def pins_snoozes_and_deadlines_are_kept(which: Candidate, line: Decision, length: timedelta) -> None:
    clock, snoozed = ZoneInfo(which.wish.time_zone or which.policy.time_zone), which.wish.snoozed_until
    if line.at and which.wish.until and which.wish.mode is Mode.pin:
        assert line.at.astimezone(clock).date() >= which.wish.until
    if line.at and snoozed and which.wish.agreed != NEW:
        assert line.at >= min(snoozed, line.deadline or snoozed) or line.forced
    if line.deadline:
        assert which.notified and line.deadline >= which.notified + which.policy.notice_hours * HOUR
        if line.at is None:
            assert line.reason in IMPOSSIBLE
        else:
            assert line.at >= line.deadline or not line.forced
            assert line.at - length < line.deadline or (line.reason is Reason.late and line.detail)


@pytest.mark.slow
@settings(max_examples=several(50), deadline=None)
@given(worlds(), ROLLOUTS, st.randoms(use_true_random=False))
def test_a_plan_is_the_same_each_time_whatever_the_order(
    world: list[Candidate], shared: PlanInput, random: object
) -> None:
    shuffled = list(world)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert WaveScheduler(shared, shuffled).decisions == WaveScheduler(shared, world).decisions


TRIALS = st.lists(
    st.builds(
        lambda wave, ended, end: Trial(NEW, wave, None if end == "open" else ended, end == "moved", end == "failed"),
        st.integers(0, 3),
        MOMENTS.filter(lambda moment: moment <= NOW),
        st.sampled_from(["open", "moved", "moved", "failed", "deferred"]),
    ),
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=several(150), deadline=None)
@given(worlds(), ROLLOUTS, TRIALS)
def test_what_waves_have_shown_changes_a_plan_as_if_it_had_been_known_from_the_beginning(
    world: list[Candidate], shared: PlanInput, tried: list[Trial]
) -> None:
    shared = replace(shared, gates={})
    patience = shared.now + timedelta(hours=shared.policy.wave_hours)
    without = WaveScheduler(shared, world).decisions
    left = Counter((each.new, each.wave or 0) for each in without if each.wave is not None and each.at)
    left -= Counter((each.new, each.wave or 0) for each in without if each.at and each.at >= patience)
    expected = wave_gates.gates(tried, left, {}, shared.policy, shared.now)
    lines, gates = plan_after(world, shared, tried, {})
    assert gates == expected
    assert lines == WaveScheduler(replace(shared, gates=expected), world).decisions
