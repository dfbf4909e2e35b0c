"""Actions: one for a session at once, and what came of them."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DatabaseError

from flows.core.errors import RefitError
from flows.sessions.wishes import caller
from flows.web.my_sessions.actions import Actions
from flows.web.my_sessions.problems import Code, Problem
from flows.web.people.action_records import INTERRUPTED
from tests.support.waiting import wait_until


def test_one_action_for_a_session_goes_on_at_once_and_is_done_in_its_persons_name(database: Engine) -> None:
    actions, go, by = Actions(database), threading.Event(), list[str]()

    def work() -> str:
        go.wait(20)
        by.append(caller())
        return "done"

    actions.begin("ada", "stop", "ada", work)
    with pytest.raises(Problem) as refused:
        actions.begin("ada", "start", "ada", work)
    assert refused.value.code is Code.busy
    go.set()
    wait_until(lambda: bool((doing := actions.of("ada")) and doing.ended))
    doing = actions.of("ada")
    assert doing and (doing.note, doing.problem) == ("done", "") and by == ["ada"] and caller() != "ada"


def test_the_problem_of_an_action_is_told_without_advice_for_operators(database: Engine) -> None:
    actions = Actions(database)

    def fails() -> str:
        raise RefitError("It failed.", why="So it is.", hint="`refit doctor` knows more.")

    def breaks() -> str:
        raise ZeroDivisionError("secret")

    actions.begin("ada", "start", "ada", fails)
    actions.begin("bob", "start", "bob", breaks)
    wait_until(lambda: all(one.ended for one in actions.all().values()))
    ada, bob = actions.of("ada"), actions.of("bob")
    assert ada and (ada.problem, ada.hint) == ("It failed. So it is.", "")
    assert bob and "secret" not in bob.problem and bob.problem


def test_a_process_that_begins_anew_tells_what_came_of_actions_and_which_were_interrupted(database: Engine) -> None:
    before, go = Actions(database), threading.Event()

    def waits() -> str:
        go.wait(20)
        return "It is stopped."

    before.begin("ada", "start", "ada", lambda: "It runs.")
    before.begin("bob", "stop", "bob", waits)
    wait_until(lambda: bool((doing := before.of("ada")) and doing.ended))
    after = Actions(database)
    ada, bob = after.of("ada"), after.of("bob")
    assert ada and (ada.note, ada.problem) == ("It runs.", "")
    assert bob and bob.ended and bob.problem == INTERRUPTED and bob.hint
    after.begin("bob", "start", "bob", lambda: "It runs again.")
    go.set()
    before.close()
    after.close()
    last = Actions(database).of("bob")
    assert last and last.note == "It runs again."


def test_an_action_that_cannot_be_written_down_does_not_begin(database: Engine) -> None:
    actions, done = Actions(database), list[str]()
    with database.begin() as connection:
        connection.execute(text("DROP TABLE person_actions"))
    with pytest.raises(DatabaseError):
        actions.begin("ada", "stop", "ada", lambda: done.append("stop") or "")
    actions.close()
    assert not done and actions.of("ada") is None
