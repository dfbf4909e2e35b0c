"""A session as people see it, as plain data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flows.core.settings.policy import Mode
from flows.migrations.planning.outlook import Outlook
from flows.migrations.planning.rollout import Reason
from flows.sessions.model import Running
from flows.web.my_sessions import session_view
from flows.web.my_sessions.login import back_to
from flows.web.my_sessions.session_view import Doing, State

NOW = datetime(2026, 11, 25, 9, tzinfo=UTC)
STOPS, STARTS = Doing("stop", "ada", NOW), Doing("start", "ada", NOW)


@pytest.mark.parametrize(
    ("running", "doing", "should_run", "moving", "busy", "state"),
    [
        (Running.running, None, True, False, False, State.running),
        (Running.running, STOPS, True, False, False, State.stopping),
        (Running.running, None, True, True, True, State.moving),
        (Running.stopped, None, False, False, False, State.stopped),
        (Running.stopped, STARTS, False, False, False, State.starting),
        (Running.stopped, None, True, False, True, State.starting),
        (Running.stopped, None, True, False, False, State.down),
        (None, None, False, False, False, State.stopped),
    ],
)
def test_the_state_of_a_session(
    running: Running | None, doing: Doing | None, should_run: bool, moving: bool, busy: bool, state: State
) -> None:
    assert session_view.state(running, doing, should_run=should_run, moving=moving, busy=busy) is state


@pytest.mark.parametrize(
    ("ahead", "part"),
    [
        (Outlook(Mode.when_idle), "It has the newest image"),
        (Outlook(Mode.when_idle, "new"), "when nobody works in it"),
        (Outlook(Mode.when_idle, "new", deadline=NOW), "On 2026-11-25 09:00 UTC it moves whatever works in it."),
        (Outlook(Mode.when_idle, "new", agreed=True), "as you have agreed"),
        (Outlook(Mode.pin, "new", Reason.pinned, NOW), "You have pinned it"),
        (Outlook(Mode.when_idle, "new", Reason.snoozed, NOW), "You have put it off until 2026-11-25 09:00 UTC"),
        (Outlook(Mode.ask, "new", Reason.ask), "you are to agree."),
        (
            Outlook(Mode.ask, "new", Reason.ask, by="ada"),
            "to agree. ada's own recipe made that image, and nobody",
        ),
        (Outlook(Mode.when_idle, "new", Reason.held), "looked at by the operator"),
    ],
)
def test_when_a_session_moves_is_said_in_words(ahead: Outlook, part: str) -> None:
    assert part in session_view.when(ahead, NOW + timedelta(hours=1), NOW)


@pytest.mark.parametrize("reason", list(Reason))
def test_no_reason_that_owners_read_names_a_command_of_the_shell(reason: Reason) -> None:
    assert "refit " not in session_view.when(Outlook(Mode.when_idle, "new", reason), None, NOW)


@pytest.mark.parametrize(
    ("asked", "leads"),
    [
        ("/services/sessions/sessions/ada?x=1", "/services/sessions/sessions/ada?x=1"),
        ("/services/sessions/", "/services/sessions/"),
        ("//evil.example/services/sessions/", "/services/sessions/"),
        ("/services/sessions/../../hub", "/services/sessions/"),
        ("/services/sessions//evil", "/services/sessions/"),
        ("/services/sessions/\\evil", "/services/sessions/"),
        ("https://evil.example", "/services/sessions/"),
        ("/hub/logout", "/services/sessions/"),
        ("/services/sessions/oauth_callback?code=x", "/services/sessions/"),
        ("/services/sessions/" + "a" * 2000, "/services/sessions/"),
    ],
)
def test_a_login_leads_back_to_pages_of_its_own_alone(asked: str, leads: str) -> None:
    assert back_to(asked) == leads
