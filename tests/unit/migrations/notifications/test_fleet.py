"""The view of all sessions and rollouts, and its picture."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from flows.cli import migrate
from flows.migrations.move_steps import State
from flows.migrations.notifications import chart
from flows.migrations.notifications.fleet import Fleet, Question, fleet, questions
from flows.migrations.planning.rollout import Action, Decision, Gate, Health, Reason, RolloutStatus
from flows.migrations.planning.rollout_state import RolloutState
from flows.migrations.planning.wave_gates import Trial
from flows.sessions.events import Event, Kind

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
NEW = "sha256:0123456789abcdef"
STANDINGS = {
    NEW: RolloutState(NEW, "p0", "2026a", NOW - HOUR, "ada", RolloutStatus.running),
    "sha256:before": RolloutState("sha256:before", "p0", "2026a", NOW - 9 * HOUR, "", RolloutStatus.superseded),
}
DECISIONS = (
    Decision("ada", Action.skip, NEW, NEW, Reason.current),
    Decision("bob", Action.wait, "old", NEW, Reason.busy, "train.py", wave=2, deadline=NOW - HOUR),
    Decision("cyd", Action.migrate, "old", NEW, wave=2, at=NOW + HOUR),
)
TRIALS = [Trial(NEW, 1, NOW, moved=True), Trial(NEW, 2, NOW, failed=True), Trial("other", 1, NOW, moved=True)]
GATES = {(NEW, 1): Gate(Health.passed, NOW)}


def shown() -> Fleet:
    return fleet(DECISIONS, GATES, TRIALS, STANDINGS, (50, 100), NOW)


def test_who_is_behind_and_why_and_who_is_overdue() -> None:
    ada, bob, cyd = shown().sessions
    assert (ada.behind_since, ada.why, ada.overdue) == (None, "", False)
    assert (bob.behind_since, bob.overdue, bob.why) == (NOW - HOUR, True, f"{Reason.busy.text}; train.py")
    assert (cyd.behind_since, cyd.overdue, cyd.at, cyd.why) == (NOW - HOUR, False, NOW + HOUR, "")


def test_a_rollout_has_a_line_for_each_wave_and_one_that_is_over_is_not_shown() -> None:
    (rollout,) = shown().rollouts
    assert (rollout.image, rollout.way) == (NEW, RolloutStatus.running)
    assert not rollout.complete and replace(rollout, waves=rollout.waves[:1]).complete
    told = [(wave.title, wave.moved, wave.failed, wave.left, wave.health) for wave in rollout.waves]
    assert told == [("50 %", 1, 0, 0, Health.passed), ("100 %", 0, 1, 2, None)]


@pytest.mark.parametrize("health", [Health.unapproved, Health.failed, Health.inconclusive], ids=str)
def test_a_rollout_that_waits_for_a_person_asks_about_the_last_wave_that_does(health: Health) -> None:
    sessions = fleet(DECISIONS, {(NEW, 1): Gate(health, NOW)}, TRIALS, STANDINGS, (50, 100), NOW)
    assert questions(sessions) == (Question(NEW, "50 %", f"{health.text}. p0 2026a: moved 1, failed 0."),)
    both = fleet(DECISIONS, {(NEW, wave): Gate(health, NOW) for wave in (1, 2)}, TRIALS, STANDINGS, (50, 100), NOW)
    assert [one.wave for one in questions(both)] == ["100 %"]


def test_nobody_is_asked_where_nothing_waits_for_the_answer() -> None:
    gates = {(NEW, 1): Gate(Health.unapproved, NOW)}
    assert questions(shown()) == ()
    assert questions(fleet(DECISIONS[:1], gates, TRIALS, STANDINGS, (50, 100), NOW)) == ()
    paused = {NEW: replace(STANDINGS[NEW], way=RolloutStatus.paused)}
    assert questions(fleet(DECISIONS, gates, TRIALS, paused, (50, 100), NOW)) == ()


def test_the_picture_counts_how_moves_have_ended() -> None:
    ends = (State.cleaned, State.cleaned, State.rolled_back, State.deferred)
    events = [
        Event(n, NOW - HOUR + n * HOUR / 9, Kind.move_ended, f"s{n}", NEW, "", "", "", {"state": state.value})
        for n, state in enumerate(ends)
    ]
    told = chart.markdown(shown(), events, NOW)
    drawn = base64.b64decode(told.partition("base64,")[2].partition(")")[0]).decode()
    texts = [element.text for element in ElementTree.fromstring(drawn) if element.tag.endswith("text")]
    assert {"moved: 2", "failed: 1", "deferred: 1"} <= set(texts)
    assert "| 50 % | 1 | 0 | 0 | passed |" in told


def test_without_a_rollout_there_is_nothing_to_draw() -> None:
    assert chart.markdown(Fleet((), ()), [], NOW) == "No rollout has begun."


def test_whoever_watches_sees_it_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(migrate, "WATCH_SECONDS", 0.0)
    (going,) = shown().rollouts
    ends = [going, replace(going, way=RolloutStatus.paused), replace(going, waves=going.waves[:1])]
    looks = [Fleet((rollout,), shown().sessions) for rollout in ends]
    migrate._watch(lambda: looks.pop(0))
    assert not looks
    said = capsys.readouterr().out
    assert "complete" in said and "overdue" in said
