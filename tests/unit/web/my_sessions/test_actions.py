"""Actions: one for a session at once, and what came of them."""

from __future__ import annotations

import threading

import pytest

from flows.core.errors import RefitError
from flows.sessions.wishes import caller
from flows.web.my_sessions.actions import Actions
from flows.web.my_sessions.problems import Code, Problem
from tests.support.waiting import wait_until


def test_one_action_for_a_session_goes_on_at_once_and_is_done_in_its_persons_name() -> None:
    actions, go, by = Actions(), threading.Event(), list[str]()

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


def test_the_problem_of_an_action_is_told_without_advice_for_operators() -> None:
    actions = Actions()

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
