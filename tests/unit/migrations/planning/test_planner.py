"""The plan: what holds whatever the sessions, their owners and the policy are, and one example of each reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.catalog.model import Access
from flows.core.hours import read_hours
from flows.core.policy import Freeze, Mode, RolloutPolicy, SessionPolicy, Unavailable
from flows.migrations.planning import waves
from flows.migrations.planning.plan import plan_after
from flows.migrations.planning.planner import Planner
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
from flows.migrations.planning.waves import Trial
from flows.sessions.activity.evidence import Evidence, Verdict
from flows.sessions.activity.seen import Seen
from flows.sessions.model import Session
from flows.sessions.preferences import UpdatePreferences

NEW, OLD = "sha256:new", "sha256:old"
# Late on the evening before clocks are put back in Zurich.
NOW = datetime(2026, 10, 24, 20, 30, 20, tzinfo=UTC)
ZURICH = "Europe/Zurich"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
IDLE, BUSY = Verdict.idle, Verdict.busy


def candidate(name: str = "ada", verdict: Verdict | None = IDLE, **changes: object) -> Candidate:
    session = Session(name, "p0", "2026a", OLD, 200001, Path("/h"), Path("/t"), Access())
    seen = Seen(name, verdict, NOW - HOUR, True, (Evidence(verdict, "python train.py"),)) if verdict else None
    return replace(Candidate(session, True, seen=seen), **changes)  # type: ignore[arg-type]


def policy(**changes: object) -> SessionPolicy:
    return SessionPolicy.model_validate({"time_zone": ZURICH, **changes})


def rollout(*, now: datetime = NOW, hosts: Mapping[str, Host] | None = None, **changes: object) -> PlanInput:
    targets = {(profile, "2026a"): NEW for profile in ("p0", "p1")}
    return PlanInput(now, targets, RolloutPolicy.model_validate({"waves": [100], **changes}), hosts=hosts or {})


def only(which: Candidate, shared: PlanInput | None = None) -> Decision:
    (line,) = Planner(shared or rollout(), [which]).decisions
    return line


def local(moment: datetime | None) -> str:
    assert moment
    return f"{moment.astimezone(ZoneInfo(ZURICH)):%a %H:%M %Z}"


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
@settings(max_examples=200, deadline=None)
@given(worlds(), ROLLOUTS)
def test_whatever_is_planned_keeps_to_what_was_promised(world: list[Candidate], shared: PlanInput) -> None:
    lines, known = Planner(shared, world).decisions, by_name(world)
    no_cap_is_ever_exceeded(world, shared, lines)
    for line in lines:
        which = known[line.session]
        hours_are_kept_unless_a_deadline_was_told(which, shared, line)
        nobody_who_may_be_busy_moves_without_force_or_consent(which, line)
        nothing_is_lost_by_a_timer_alone(which, shared, line)
        pins_snoozes_and_deadlines_are_kept(which, line, timedelta(seconds=shared.policy.move_seconds))


def no_cap_is_ever_exceeded(world: list[Candidate], shared: PlanInput, lines: Iterable[Decision]) -> None:
    """Counted at the beginning of each move: in between, sessions only come back."""
    known, caps = by_name(world), shared.policy.unavailable
    away = [
        (NOW, max(NOW, each.away_since + timedelta(seconds=shared.policy.move_seconds)), each)
        for each in world
        if each.away_since
    ]
    moving = [(*slots(shared, line), known[line.session]) for line in lines if line.at]
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
@settings(max_examples=50, deadline=None)
@given(worlds(), ROLLOUTS, st.randoms(use_true_random=False))
def test_a_plan_is_the_same_each_time_whatever_the_order(
    world: list[Candidate], shared: PlanInput, random: object
) -> None:
    shuffled = list(world)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Planner(shared, shuffled).decisions == Planner(shared, world).decisions


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
@settings(max_examples=150, deadline=None)
@given(worlds(), ROLLOUTS, TRIALS)
def test_what_waves_have_shown_changes_a_plan_as_if_it_had_been_known_from_the_beginning(
    world: list[Candidate], shared: PlanInput, tried: list[Trial]
) -> None:
    shared = replace(shared, gates={})
    patience = shared.now + timedelta(hours=shared.policy.wave_hours)
    without = Planner(shared, world).decisions
    left = Counter((each.new, each.wave or 0) for each in without if each.wave is not None and each.at)
    left -= Counter((each.new, each.wave or 0) for each in without if each.at and each.at >= patience)
    expected = waves.gates(tried, left, {}, shared.policy, shared.now)
    lines, gates = plan_after(world, shared, tried, {})
    assert gates == expected
    assert lines == Planner(replace(shared, gates=expected), world).decisions


# --- One by one -------------------------------------------------------------------------------------------------------


def test_who_is_idle_moves_in_the_next_slot() -> None:
    line = only(candidate())
    assert (line.action, line.reason, line.wave, line.forced) == (Action.migrate, None, 1, False)
    assert line.at == NOW + timedelta(seconds=40)  # slots are whole minutes


def test_the_slot_is_the_first_that_all_caps_leave() -> None:
    few = rollout(unavailable={"rollout": 2, "host": 1}, move_seconds=60)
    world = [candidate(f"s{n}", host="h1" if n < 2 else "h2") for n in range(4)]
    times = sorted(line.at for line in Planner(few, world).decisions if line.at)
    assert [(at - times[0]).total_seconds() for at in times] == [0, 0, 60, 60]


def test_an_owner_has_one_session_away_at_a_time() -> None:
    world = [candidate(name, owner="ann") for name in ("a", "b", "c")]
    assert len({line.at for line in Planner(rollout(), world).decisions}) == 3


@pytest.mark.parametrize(
    ("changes", "at", "reason"),
    [
        ({"windows": ["mon-fri 09:00-17:00"]}, "Mon 09:00 CET", Reason.window),
        ({"quiet": ["22:00-07:00"]}, "Sun 07:00 CET", Reason.quiet),
        ({"quiet": ["22:00-02:30"]}, "Sun 02:30 CET", Reason.quiet),  # the second time that clocks show it
        ({"windows": ["02:15-02:45"]}, "Sun 02:15 CET", Reason.window),
        ({"windows": ["sun 01:00-05:00"], "quiet": ["00:00-03:00"]}, "Sun 03:00 CET", Reason.window),
    ],
)
def test_hours_are_those_of_the_owners_clock(changes: dict[str, object], at: str, reason: Reason) -> None:
    line = only(candidate(policy=policy(**changes)))
    assert (local(line.at), line.reason, line.action) == (at, reason, Action.later)


def test_an_owner_elsewhere_has_another_clock_and_quiet_hours_of_their_own() -> None:
    here = candidate(policy=policy(quiet=["22:00-07:00"]))
    kolkata = replace(here, wish=UpdatePreferences(time_zone="Asia/Kolkata"))
    assert only(kolkata).at == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    busy_morning = replace(here, wish=UpdatePreferences(quiet=(read_hours("sun 07:00-12:00"),)))
    assert local(only(busy_morning).at) == "Sun 12:00 CET"


def test_a_pin_ends_with_its_owners_midnight() -> None:
    wish = UpdatePreferences(mode=Mode.pin, until=date(2026, 10, 26))
    line = only(candidate(policy=policy(), wish=wish))
    assert (local(line.at), line.reason) == ("Mon 00:00 CET", Reason.pinned)


TOLD = {"notified": NOW - DAY}


@pytest.mark.parametrize(
    ("which", "action", "reason"),
    [
        (candidate(verdict=None), Action.wait, Reason.unknown),
        (candidate(verdict=BUSY), Action.wait, Reason.busy),
        (candidate(verdict=Verdict.state, noticed=NOW - DAY), Action.later, Reason.state),
        (candidate(verdict=Verdict.state, notified=NOW - DAY), Action.wait, Reason.untold),
        (candidate(policy=policy(mode="ask")), Action.wait, Reason.ask),
        (candidate(wish=UpdatePreferences(mode=Mode.next_start)), Action.wait, Reason.next_start),
        (candidate(blocked="a venv of Python 3.9"), Action.wait, Reason.blocked),
        (candidate(wish=UpdatePreferences(snoozed_until=NOW + 2 * HOUR)), Action.later, Reason.snoozed),
        (candidate(away_since=NOW), Action.skip, Reason.unfinished),
        (candidate(running=False), Action.skip, Reason.stopped),
        (candidate(policy=policy(windows=["12:00-12:01"], quiet=["11:00-13:00"])), Action.wait, Reason.never),
    ],
    ids=lambda value: value.name if isinstance(value, Reason) else "",
)
def test_who_stays_is_told_why(which: Candidate, action: Action, reason: Reason) -> None:
    line = only(which)
    assert (line.action, line.reason) == (action, reason)


def test_what_makes_a_session_busy_is_shown_and_what_would_be_lost_is_kept_for_a_while() -> None:
    assert only(candidate(verdict=BUSY)).detail == "python train.py"
    told = candidate(verdict=Verdict.state, noticed=NOW - DAY)
    assert only(told).at == NOW + 7 * HOUR + timedelta(seconds=40)
    assert only(replace(told, policy=policy(idle_state_hours=2))).at == NOW + HOUR + timedelta(seconds=40)


def test_what_would_be_lost_is_kept_from_the_moment_at_which_its_owner_has_seen_a_notice() -> None:
    told = candidate(verdict=Verdict.state, noticed=NOW - timedelta(minutes=30))
    assert only(told).at == NOW + 7.5 * HOUR + timedelta(seconds=40)
    standing_word = candidate(verdict=Verdict.state, wish=UpdatePreferences(mode=Mode.when_idle))
    assert only(standing_word).at == NOW + 7 * HOUR + timedelta(seconds=40)
    forced = candidate(verdict=Verdict.state, policy=policy(deadline_days=3), notified=NOW - DAY)
    assert (only(forced).reason, only(forced).forced) == (Reason.untold, True)


def test_who_agrees_goes_first_busy_or_not_but_only_to_the_image_that_was_shown() -> None:
    agreed = candidate(
        verdict=BUSY, policy=policy(quiet=["22:00-07:00"]), blocked="venv", wish=UpdatePreferences(agreed=NEW)
    )
    assert (only(agreed).action, only(agreed).wave) == (Action.migrate, 0)
    assert only(replace(agreed, wish=UpdatePreferences(agreed="sha256:other"))).reason is Reason.blocked


def test_a_busy_session_is_forced_at_its_deadline_and_not_before() -> None:
    line = only(candidate(verdict=BUSY, policy=policy(deadline_days=3, quiet=["00:00-24:00"]), **TOLD))
    assert (line.action, line.reason, line.forced) == (Action.wait, Reason.busy, True)
    assert line.deadline == NOW + 2 * DAY
    assert line.at and timedelta() <= line.at - line.deadline < timedelta(minutes=1)
    assert line.due == line.deadline
    due = only(candidate(verdict=BUSY, policy=policy(deadline_days=3), **TOLD), rollout(now=line.at))
    assert (due.action, due.at, due.forced) == (Action.migrate, line.at, True)


def test_the_clock_of_a_deadline_begins_with_a_notice_that_was_delivered() -> None:
    forced = UpdatePreferences(mode=Mode.forced_by, until=date(2026, 10, 20))
    line = only(candidate(verdict=BUSY, wish=forced))
    assert (line.reason, line.at, line.deadline) == (Reason.busy, None, None)
    assert "no notice was delivered" in line.detail
    line = only(candidate(verdict=BUSY, wish=forced, notified=NOW))
    assert line.deadline == NOW + DAY  # `notice_hours`, though the date has passed


def test_a_snooze_ends_with_the_deadline() -> None:
    snoozed = UpdatePreferences(snoozed_until=NOW + 30 * DAY)
    line = only(candidate(wish=snoozed, policy=policy(deadline_days=3), **TOLD))
    assert line.deadline and line.at and timedelta() <= line.at - line.deadline < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("changes", "shared", "cause"),
    [
        ({"wish": UpdatePreferences(mode=Mode.pin, until=date(2026, 12, 1))}, {}, "pinned"),
        ({}, {"freezes": [{"first": "2026-10-20", "last": "2026-11-03", "why": "audit"}]}, "these days"),
        ({"notified": NOW - 9 * DAY}, {}, "passed"),
        ({"host": "slow"}, {"hosts": {"slow": Host({NEW: 10**10}, rate=1e4)}}, "pulled"),
    ],
)
def test_a_deadline_that_cannot_be_kept_is_called_impossible(
    changes: dict[str, object], shared: dict[str, object], cause: str
) -> None:
    told = {"notified": NOW - DAY, "policy": policy(deadline_days=3), "verdict": BUSY, **changes}
    line = only(candidate(**told), rollout(**shared))  # type: ignore[arg-type]
    assert line.reason is Reason.late and cause in line.detail
    assert line.deadline and line.at and line.at > line.deadline


@pytest.mark.parametrize("hours", [-1, 26.4], ids=["it has passed", "it will come"])
def test_of_40_with_one_deadline_none_is_forced_before_and_those_for_whom_there_is_no_seat_are_late(
    hours: float,
) -> None:
    four = rollout(unavailable={"host": 4})
    told = {"policy": policy(deadline_days=7), "notified": NOW + hours * HOUR - 7 * DAY, "host": "h1"}
    lines = Planner(four, [candidate(f"s{n}", BUSY, **told) for n in range(40)]).decisions
    assert all(line.forced and line.at and line.deadline and line.at >= max(line.deadline, NOW) for line in lines)
    begins = Counter(line.at for line in lines if line.at)
    assert list(begins.values()) == [4] * 10
    assert max(begins) - min(begins) == timedelta(minutes=9)
    on_time = [line for line in lines if line.reason is Reason.busy]
    assert [line.at for line in on_time] == [min(begins)] * (4 if hours > 0 else 0)
    assert {line.reason for line in lines if line not in on_time} == {Reason.late}


def test_who_can_be_moved_goes_before_the_deadline_and_only_whoever_cannot_is_forced() -> None:
    told = {"policy": policy(deadline_days=2, windows=["sun 01:00-05:00"]), **TOLD}
    assert not only(candidate(**told)).forced  # type: ignore[arg-type]
    missed = only(candidate(**told, wish=UpdatePreferences(quiet=(read_hours("sun 00:00-24:00"),))))  # type: ignore[arg-type]
    assert missed.forced and missed.at and missed.deadline and missed.at >= missed.deadline


def test_images_are_pulled_one_after_the_other_if_there_is_room() -> None:
    hosts = {"h1": Host({NEW: 6 * 10**9}, rate=1e8), "h2": Host({NEW: 6 * 10**9}, room=10**9)}
    pulls = rollout(hosts=hosts)
    line = only(candidate(host="h1"), pulls)
    assert (line.reason, line.at) == (Reason.pull, NOW + timedelta(seconds=100))
    assert only(candidate(host="h2"), pulls).reason is Reason.room


def test_f09_gpus_go_to_those_who_come_first_and_then_to_the_next() -> None:
    shared = rollout(hosts={"h1": Host(gpus=1)})
    world = [candidate(name, host="h1", gpus=1) for name in ("a", "b")]
    has, waits = sorted(Planner(shared, world).decisions, key=lambda line: line.action is Action.wait)
    assert (has.action, waits.reason) == (Action.migrate, Reason.gpu)
    (freed,) = Planner(shared, [one for one in world if one.session.name != has.session]).decisions
    assert (freed.session, freed.action) == (waits.session, Action.migrate)


def test_f09_who_waits_for_a_gpu_is_told_when_one_is_given_back_if_that_is_known() -> None:
    held = rollout(hosts={"h1": Host(gpus=0, gpus_from=NOW + timedelta(hours=2))})
    line = only(candidate(host="h1", gpus=1), held)
    assert line.why == f"it waits for a GPU; one is free from {NOW + timedelta(hours=2):%Y-%m-%d %H:%M} UTC on"
    assert only(candidate(host="h1", gpus=1), rollout(hosts={"h1": Host(gpus=0)})).why == "it waits for a GPU"


def test_the_next_wave_begins_when_the_one_before_has_baked() -> None:
    shared = rollout(waves=[50, 100], bake_minutes=30)
    lines = Planner(shared, [candidate(f"s{n}") for n in range(20)]).decisions
    times = {wave: [line.at for line in lines if line.at and line.wave == wave] for wave in (1, 2)}
    ends, begins = max(times[1]), min(times[2])
    assert begins - ends == timedelta(minutes=31)
    passed = replace(shared, gates={(NEW, 1): Gate(Health.passed, NOW)})
    assert all(line.at == ends for line in Planner(passed, [candidate(f"s{n}") for n in range(20)]).decisions)


def test_nobody_waits_for_who_is_on_leave() -> None:
    shared = rollout(waves=[50, 100])
    lines = Planner(shared, [candidate(f"s{n}") for n in range(20)]).decisions
    first = next(line.session for line in lines if line.wave == 1)
    away = [
        candidate(
            f"s{n}", wish=UpdatePreferences(snoozed_until=NOW + 9 * DAY) if f"s{n}" == first else UpdatePreferences()
        )
        for n in range(20)
    ]
    assert Counter(line.at for line in Planner(shared, away).decisions if line.wave == 2) == Counter(
        line.at for line in lines if line.wave == 2
    )


@pytest.mark.parametrize(
    ("health", "waits"),
    [(Health.failed, {1, 2}), (Health.inconclusive, {2}), (Health.unapproved, {2}), (Health.open, set())],
)
def test_a_wave_that_failed_stops_itself_and_the_next(health: Health, waits: set[int]) -> None:
    shared = replace(rollout(waves=[50, 100]), gates={(NEW, 1): Gate(health, NOW)})
    lines = Planner(shared, [candidate(f"s{n}") for n in range(20)]).decisions
    assert {line.wave for line in lines if line.reason is Reason.gate} == waits


def test_a_wave_whose_last_move_has_ended_bakes_before_the_next_begins() -> None:
    ended = NOW - timedelta(minutes=10)
    shared = replace(rollout(waves=[50, 100], bake_minutes=30), gates={(NEW, 1): Gate(Health.open, ended)})
    world = [candidate(f"s{n}") for n in range(20)]
    first = {line.session for line in Planner(shared, world).decisions if line.wave == 1}
    lines = Planner(shared, [one for one in world if one.session.name not in first]).decisions
    assert {line.due for line in lines} == {ended + timedelta(minutes=30)}


def test_another_image_knows_nothing_of_a_wave_that_failed() -> None:
    shared = replace(rollout(waves=[100]), gates={("sha256:other", 1): Gate(Health.failed, NOW)})
    assert only(candidate(), shared).action is Action.migrate


def test_who_was_rolled_back_is_moved_to_that_image_by_name_only() -> None:
    failed = candidate(failed=NEW)
    assert (only(failed).action, only(failed).reason) == (Action.skip, Reason.failed)
    assert only(replace(failed, wish=UpdatePreferences(agreed=NEW))).action is Action.migrate
    assert only(candidate(failed="sha256:other")).action is Action.migrate


def test_who_was_deferred_rests_for_a_while() -> None:
    line = only(candidate(rests_until=NOW + timedelta(minutes=5)))
    assert (line.action, line.reason) == (Action.later, Reason.deferred)
    assert line.due == NOW + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (RolloutStatus.paused, Reason.paused),
        (RolloutStatus.aborted, Reason.aborted),
        (RolloutStatus.superseded, Reason.superseded),
    ],
)
def test_a_rollout_that_rests_moves_nobody(way: RolloutStatus, reason: Reason) -> None:
    line = only(candidate(wish=UpdatePreferences(agreed=NEW)), replace(rollout(), ways={NEW: way}))
    assert (line.action, line.reason, line.at) == (Action.wait, reason, None)


def test_volunteers_and_the_canary_go_first() -> None:
    shared = replace(rollout(waves=[0.001, 100]), canaries=frozenset({"s3"}))
    world = [candidate(f"s{n}", wish=UpdatePreferences(volunteer=n == 7)) for n in range(9)]
    found = {line.session: line.wave for line in Planner(shared, world).decisions}
    assert (found.pop("s7"), found.pop("s3"), set(found.values())) == (0, 1, {2})


def test_one_that_is_away_unforeseen_takes_the_seat_of_another_who_moves_a_slot_later() -> None:
    shared, world = rollout(unavailable={"rollout": 1}), [candidate("a"), candidate("b")]
    times, later = (
        {line.at for line in Planner(shared, world + more).decisions if line.at}
        for more in ([], [replace(candidate("c"), away_since=NOW)])
    )
    assert min(later) > min(times) and min(times) not in later
