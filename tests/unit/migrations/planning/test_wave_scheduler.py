"""The plan: one example of each reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from flows.core.hours import read_hours
from flows.core.settings.policy import Mode
from flows.migrations.planning.rollout import (
    Action,
    Candidate,
    Gate,
    Health,
    Host,
    Reason,
    RolloutStatus,
)
from flows.migrations.planning.wave_scheduler import WaveScheduler
from flows.sessions.activity.evidence import Verdict
from flows.sessions.preferences import UpdatePreferences
from tests.support.planning import BUSY, DAY, HOUR, NEW, NOW, ZURICH, candidate, only, policy, rollout


def local(moment: datetime | None) -> str:
    assert moment
    return f"{moment.astimezone(ZoneInfo(ZURICH)):%a %H:%M %Z}"


def test_who_is_idle_moves_in_the_next_slot() -> None:
    line = only(candidate())
    assert (line.action, line.reason, line.wave, line.forced) == (Action.migrate, None, 1, False)
    assert line.at == NOW + timedelta(seconds=40)  # slots are whole minutes


def test_the_slot_is_the_first_that_all_caps_leave() -> None:
    few = rollout(unavailable={"rollout": 2, "host": 1}, move_seconds=60)
    world = [candidate(f"s{n}", host="h1" if n < 2 else "h2") for n in range(4)]
    times = sorted(line.at for line in WaveScheduler(few, world).decisions if line.at)
    assert [(at - times[0]).total_seconds() for at in times] == [0, 0, 60, 60]


def test_an_owner_has_one_session_away_at_a_time() -> None:
    world = [candidate(name, owner="ann") for name in ("a", "b", "c")]
    assert len({line.at for line in WaveScheduler(rollout(), world).decisions}) == 3


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
    lines = WaveScheduler(four, [candidate(f"s{n}", BUSY, **told) for n in range(40)]).decisions
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
    has, waits = sorted(WaveScheduler(shared, world).decisions, key=lambda line: line.action is Action.wait)
    assert (has.action, waits.reason) == (Action.migrate, Reason.gpu)
    (freed,) = WaveScheduler(shared, [one for one in world if one.session.name != has.session]).decisions
    assert (freed.session, freed.action) == (waits.session, Action.migrate)


def test_f09_who_waits_for_a_gpu_is_told_when_one_is_given_back_if_that_is_known() -> None:
    held = rollout(hosts={"h1": Host(gpus=0, gpus_from=NOW + timedelta(hours=2))})
    line = only(candidate(host="h1", gpus=1), held)
    assert line.why == f"it waits for a GPU; one is free from {NOW + timedelta(hours=2):%Y-%m-%d %H:%M} UTC on"
    assert only(candidate(host="h1", gpus=1), rollout(hosts={"h1": Host(gpus=0)})).why == "it waits for a GPU"


def test_the_next_wave_begins_when_the_one_before_has_baked() -> None:
    shared = rollout(waves=[50, 100], bake_minutes=30)
    lines = WaveScheduler(shared, [candidate(f"s{n}") for n in range(20)]).decisions
    times = {wave: [line.at for line in lines if line.at and line.wave == wave] for wave in (1, 2)}
    ends, begins = max(times[1]), min(times[2])
    assert begins - ends == timedelta(minutes=31)
    passed = replace(shared, gates={(NEW, 1): Gate(Health.passed, NOW)})
    assert all(line.at == ends for line in WaveScheduler(passed, [candidate(f"s{n}") for n in range(20)]).decisions)


def test_nobody_waits_for_who_is_on_leave() -> None:
    shared = rollout(waves=[50, 100])
    lines = WaveScheduler(shared, [candidate(f"s{n}") for n in range(20)]).decisions
    first = next(line.session for line in lines if line.wave == 1)
    away = [
        candidate(
            f"s{n}", wish=UpdatePreferences(snoozed_until=NOW + 9 * DAY) if f"s{n}" == first else UpdatePreferences()
        )
        for n in range(20)
    ]
    assert Counter(line.at for line in WaveScheduler(shared, away).decisions if line.wave == 2) == Counter(
        line.at for line in lines if line.wave == 2
    )


@pytest.mark.parametrize(
    ("health", "waits"),
    [(Health.failed, {1, 2}), (Health.inconclusive, {2}), (Health.unapproved, {2}), (Health.open, set())],
)
def test_a_wave_that_failed_stops_itself_and_the_next(health: Health, waits: set[int]) -> None:
    shared = replace(rollout(waves=[50, 100]), gates={(NEW, 1): Gate(health, NOW)})
    lines = WaveScheduler(shared, [candidate(f"s{n}") for n in range(20)]).decisions
    assert {line.wave for line in lines if line.reason is Reason.gate} == waits


def test_a_wave_whose_last_move_has_ended_bakes_before_the_next_begins() -> None:
    ended = NOW - timedelta(minutes=10)
    shared = replace(rollout(waves=[50, 100], bake_minutes=30), gates={(NEW, 1): Gate(Health.open, ended)})
    world = [candidate(f"s{n}") for n in range(20)]
    first = {line.session for line in WaveScheduler(shared, world).decisions if line.wave == 1}
    lines = WaveScheduler(shared, [one for one in world if one.session.name not in first]).decisions
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
    waves = {line.session: line.wave for line in WaveScheduler(shared, world).decisions}
    assert (waves.pop("s7"), waves.pop("s3"), set(waves.values())) == (0, 1, {2})


def test_one_that_is_away_unforeseen_takes_the_seat_of_another_who_moves_a_slot_later() -> None:
    shared, world = rollout(unavailable={"rollout": 1}), [candidate("a"), candidate("b")]
    times, later = (
        {line.at for line in WaveScheduler(shared, world + more).decisions if line.at}
        for more in ([], [replace(candidate("c"), away_since=NOW)])
    )
    assert min(later) > min(times) and min(times) not in later
