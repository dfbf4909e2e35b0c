"""The question right before a session is stopped: minutes have passed since it was planned."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flows.core.hours import read_hours
from flows.core.settings.policy import Mode
from flows.migrations.move import Consent
from flows.migrations.planning.move_terms import deadline_if_told, frozen, objection, starting
from flows.migrations.planning.rollout import Action, Reason
from flows.sessions.preferences import UpdatePreferences
from tests.support.planning import BUSY, HOUR, NEW, NOW, candidate, only, policy, rollout

FREEZE = {"first": "2026-10-24", "last": "2026-10-25", "why": "a fair"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"policy": policy(quiet=["22:00-07:00"])}, Reason.quiet),
        ({"policy": policy(quiet=["23:00-07:00"])}, None),
        ({"policy": policy(windows=["08:00-10:00"])}, Reason.window),
        ({"policy": policy(windows=["22:30-22:31"])}, None),
        ({"policy": policy(), "wish": UpdatePreferences(quiet=(read_hours("sat 22:30-22:31"),))}, Reason.quiet),
        ({"policy": policy(quiet=["22:00-07:00"]), "wish": UpdatePreferences(agreed=NEW)}, None),
        ({"wish": UpdatePreferences(snoozed_until=NOW + HOUR)}, Reason.snoozed),
        ({"wish": UpdatePreferences(mode=Mode.ask)}, Reason.ask),
    ],
    ids=str,
)
def test_hours_and_wishes_count_to_the_second_of_the_stop(changes: dict[str, object], why: Reason | None) -> None:
    assert objection(candidate(**changes), NEW, rollout()) == (why.text if why else "")


def test_a_freeze_that_has_begun_meanwhile_holds_for_those_whose_deadline_has_come_as_well() -> None:
    frozen_days = rollout(freezes=[FREEZE])
    assert objection(candidate(), NEW, frozen_days) == frozen(candidate(), frozen_days) == Reason.frozen.text
    assert frozen(candidate(policy=policy(quiet=["22:00-07:00"])), rollout()) == ""
    assert frozen(candidate(), replace(frozen_days, now=datetime(2026, 10, 26, 9, tzinfo=UTC))) == ""


def test_f11_who_works_until_the_deadline_is_never_stopped_before_it() -> None:
    told = candidate(verdict=BUSY, policy=policy(deadline_days=2), notified=NOW - timedelta(days=1))
    assert "python train.py" in objection(told, NEW, rollout())
    deadline = NOW + timedelta(days=1)
    assert deadline_if_told(told, NEW, rollout()) == deadline
    before, after = (only(told, rollout(now=deadline + timedelta(minutes=minutes))) for minutes in (-1, 1))
    assert (before.action, before.due) == (Action.wait, deadline)
    assert (after.action, after.consent) == (Action.migrate, Consent.forced)


def test_f17_without_a_notice_that_was_delivered_no_clock_runs() -> None:
    untold = candidate(verdict=BUSY, policy=policy(deadline_days=2))
    late = rollout(now=NOW + timedelta(days=30))
    assert objection(untold, NEW, late)
    assert deadline_if_told(untold, NEW, late) == NOW + timedelta(days=32)


@pytest.mark.parametrize("mode", [Mode.next_start, Mode.ask, Mode.when_idle])
def test_f5_whoever_starts_a_session_is_asked_for_nothing_more_and_only_freezes_keep_it(mode: Mode) -> None:
    stopped = candidate(
        verdict=None,
        running=False,
        policy=policy(quiet=["00:00-24:00"], mode=Mode.next_start),
        wish=UpdatePreferences(mode=mode, snoozed_until=NOW + HOUR),
    )
    assert only(stopped).reason is Reason.stopped
    begins = starting(stopped, NOW)
    assert only(begins).action is Action.migrate and only(begins).reason is None
    assert only(begins, rollout(freezes=[FREEZE])).reason is Reason.frozen
    assert only(replace(begins, blocked="tool: needs GLIBC")).reason is Reason.blocked
