"""Records of actions: how a session was made is told to its person for a while, in words for people."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from flows.core.database import now
from flows.core.errors import RefitError, UnknownName
from flows.sessions.people.person_limits import OverLimit, Resource
from flows.web.people import action_records
from flows.web.people.action_records import FAILED, INTERRUPTED, KEPT, LONGEST, ActionRecords, Service
from flows.web.people.doing import Doing


@pytest.fixture
def hub(database: Engine) -> ActionRecords:
    return ActionRecords(database, Service.hub)


def _fails(error: Exception) -> None:
    raise error


def _follow(hub: ActionRecords, person: str, server: str, error: Exception) -> Doing:
    with pytest.raises(type(error)):
        hub.follow_creation(person, server, lambda: _fails(error))
    return hub.creations(person)[server]


def test_a_creation_goes_on_while_the_session_is_made_and_then_ends(hub: ActionRecords) -> None:
    assert not hub.follow_creation("ada", "", lambda: hub.creations("ada")[""].ended)
    made = hub.creations("ada")[""]
    assert made.ended and not made.problem


@pytest.mark.parametrize(
    ("error", "problem", "hint"),
    [
        (RefitError("No room.", why="It is full.", hint="`refit doctor` helps."), "No room. It is full.", ""),
        (OverLimit(Resource.sessions, "Too much.", "You have 2.", "stop one."), "Too much. You have 2.", "stop one."),
        (UnknownName("profile", "mine", ["eves-secret"]), "There is no profile 'mine'.", ""),
        (ValueError("a secret"), FAILED, ""),
        (RefitError("x" * 3 * LONGEST), "x" * LONGEST, ""),
    ],
)
def test_why_a_session_was_not_made_is_told_to_its_person(
    hub: ActionRecords, error: Exception, problem: str, hint: str
) -> None:
    told = _follow(hub, "ada", "notes", error)
    assert (told.problem, told.hint) == (problem, hint) and told.ended


def test_people_are_told_of_their_own_alone_whatever_their_names(hub: ActionRecords) -> None:
    _follow(hub, "ada", "b", RefitError("Of Ada."))
    _follow(hub, "ada/b", "", RefitError("Of another."))
    assert list(hub.creations("ada")) == ["b"] and list(hub.creations("ada/b")) == [""]
    assert not hub.creations("a%") and not hub.of_sessions()


def test_a_creation_that_was_killed_is_told_as_interrupted_and_those_of_the_page_go_on(
    hub: ActionRecords, database: Engine
) -> None:
    hub.begin("notes", Doing("create", "ada", now()), person="ada")
    page = ActionRecords(database, Service.page)
    page.begin("ada", Doing("stop", "ada", now()))
    hub.end_interrupted()
    assert hub.creations("ada")["notes"].problem == INTERRUPTED
    assert page.of_sessions()["ada"].ended is None


def test_what_came_of_an_action_is_told_for_a_while(hub: ActionRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    _follow(hub, "ada", "notes", RefitError("No room."))
    hub.begin("long", Doing("create", "ada", now()), person="ada")
    later = now() + KEPT + timedelta(seconds=1)
    monkeypatch.setattr(action_records, "now", lambda: later)
    assert list(hub.creations("ada")) == ["long"]
