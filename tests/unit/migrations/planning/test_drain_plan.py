"""Sessions on machines that are to go down: who moves when, who is told, and what ends that."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from flows.migrations.planning import drain_plan
from flows.migrations.planning.drain_plan import DrainedSession, decide
from flows.migrations.planning.rollout import Action, Reason
from flows.sessions.activity.evidence import Verdict
from flows.sessions.events import Event, Kind
from tests.support.planning import NOW, OLD, candidate

MINUTES = 30.0
SOON = timedelta(minutes=1)


def drained(verdict: Verdict | None = Verdict.idle, **changes: object) -> DrainedSession:
    seen = candidate("ada", verdict)
    return replace(DrainedSession(seen.session, True, NOW, seen.seen), **changes)  # type: ignore[arg-type]


def test_one_in_which_nobody_works_goes_at_once_with_the_image_that_it_has() -> None:
    line = decide(drained(), NOW, MINUTES)
    assert (line.action, line.old, line.new, line.at) == (Action.migrate, OLD, OLD, NOW)
    assert line.consent is None and line.deadline == NOW + timedelta(minutes=MINUTES)


@pytest.mark.parametrize(
    ("verdict", "reason"), [(Verdict.busy, Reason.busy), (Verdict.state, Reason.state), (None, Reason.unknown)]
)
def test_one_in_which_somebody_works_is_waited_for_until_the_deadline(verdict: Verdict, reason: Reason) -> None:
    waits = drained(verdict)
    line = decide(waits, NOW + timedelta(minutes=MINUTES) - SOON, MINUTES)
    assert (line.action, line.reason, line.at) == (Action.wait, reason, None)
    forced = decide(waits, NOW + timedelta(minutes=MINUTES), MINUTES)
    assert forced.action is Action.migrate and forced.forced


def test_what_an_earlier_move_has_left_is_not_for_us_to_end() -> None:
    assert decide(drained(obstacle=Reason.held), NOW + timedelta(days=1), MINUTES).reason is Reason.held
    assert decide(drained(running=False), NOW + timedelta(days=1), MINUTES).reason is Reason.stopped


def test_one_that_was_put_off_rests_and_no_longer_than_the_deadline() -> None:
    rests = drained(rests_until=NOW + SOON)
    assert decide(rests, NOW, MINUTES).action is Action.later
    assert decide(rests, NOW + SOON, MINUTES).action is Action.migrate
    assert decide(replace(rests, rests_until=NOW + timedelta(days=1)), NOW + timedelta(hours=1), MINUTES).forced


def event(number: int, session: str, machine: str, at: datetime = NOW) -> Event:
    return Event(number, at, Kind.leaves, session, "", "", "", "", {drain_plan.MACHINE: machine})


def test_a_node_that_is_closed_again_gives_people_their_time_again() -> None:
    later = NOW + timedelta(days=1)
    first, opened, again = event(1, "ada", "n1"), event(2, "ada", ""), event(3, "ada", "n1", later)
    assert drain_plan.still_leaving([first]) == {"ada": ("n1", NOW)}
    assert drain_plan.still_leaving([first, opened]) == {}
    assert drain_plan.still_leaving([first, opened, again]) == {"ada": ("n1", later)}


def test_each_is_told_once_of_each_machine() -> None:
    before = {"ada": ("n1", NOW), "ben": ("n1", NOW), "eve": ("n1", NOW)}
    assert drain_plan.changed({"ada": "n1", "ben": "n2", "joe": "n1"}, before) == {"ben": "n2", "joe": "n1", "eve": ""}


@pytest.mark.parametrize(
    ("since", "minutes", "says"),
    [
        (NOW, MINUTES, f"by {NOW + timedelta(minutes=MINUTES):%Y-%m-%d %H:%M} UTC in any case"),
        (None, MINUTES, "within 30 minutes after a Refit that runs has seen it"),
        (NOW, 0, "is not moved for it"),
    ],
)
def test_a_plan_says_that_a_session_has_to_leave_its_machine_and_by_when(
    since: datetime | None, minutes: float, says: str
) -> None:
    told = drain_plan.explanation("n1", since, minutes)
    assert told.startswith("it has to leave the machine n1") and says in told
