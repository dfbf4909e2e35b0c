"""The gateway's memory of the authorizer's answers, with a clock of the test's: real JavaScript, no waiting."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import flows.gateway
from flows.gateway.proxy import NODE

_MODULE = Path(flows.gateway.__file__).parent / "npm" / "visits.mjs"
_BEGIN = f"""
import {{ Visits }} from {json.dumps(str(_MODULE))};
let now = 0;
performance.now = () => now;
const visits = new Visits(3, 15000);
const at = (seconds) => (now = 1000 * seconds);
const admit = (key, person, keep) => visits.remember(key, {{ visit: ["s", person, "a1"], keep }});
const knows = (...keys) => keys.map((key) => Boolean(visits.recall(key)));
const told = [];
"""


def run(steps: str) -> Any:
    """The values that the steps have put into `told`."""
    program = f"{_BEGIN}{steps}\nconsole.log(JSON.stringify(told));"
    call = [NODE, "--input-type=module", "--eval", program]
    return json.loads(subprocess.run(call, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_an_answer_holds_for_seconds_and_for_longer_only_while_the_authorizer_looks() -> None:
    assert run("""
        admit("owner", "ada", 60); admit("guest", "bob"); admit("also", "eve", 60);
        at(14); told.push(knows("owner", "guest")); visits.looked();
        at(16); told.push(knows("owner", "guest"));
        at(28); visits.looked();
        at(42); told.push(knows("owner")); visits.looked();
        at(56); told.push(knows("owner"), visits.all().map(([[, person]]) => person)); visits.looked();
        at(61); told.push(knows("owner"));
    """) == [[True, True], [True, False], [True], [True], ["ada", "eve"], [False]]


def test_an_answer_that_held_no_more_never_holds_again() -> None:
    """The authorizer wasn't told of it, and so its look says nothing of it."""
    assert run("""
        admit("owner", "ada", 600);
        at(10); visits.looked();
        at(26); told.push(visits.all()); visits.looked();
        told.push(knows("owner"), visits.all());
    """) == [[], [False], []]


def test_answers_are_forgotten_with_their_session_and_the_oldest_where_there_are_too_many() -> None:
    assert run("""
        for (const path of ["a", "a/sub", "ab"]) admit(`/session/${path}\\nx`, "ada", 600);
        visits.forget("/session/a");
        told.push(knows("/session/a\\nx", "/session/a/sub\\nx", "/session/ab\\nx"));
        for (const key of "123") admit(key, "bob", 600);
        told.push(knows("/session/ab\\nx", "1", "2", "3"));
    """) == [[False, False, True], [False, True, True, True]]


def test_an_answer_that_is_taken_back_is_gone_at_once_however_long_it_might_hold() -> None:
    assert run("""
        admit("owner", "ada", 600); admit("other", "eve", 600);
        at(5); visits.looked(); visits.end([["s", "ada", "a1"]]);
        told.push(knows("owner", "other"));
    """) == [[False, True]]
