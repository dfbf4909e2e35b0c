"""Waiting: how often is looked, when it ends, and that nothing else waits in another way."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.core import waiting

FLOWS = Path(__file__).parents[3] / "flows"
# Programs of their own, inside of containers or as another user: they have the standard library and nothing else.
ALONE = {
    "migrations/rehearsals/checks.py",
    "publishing/ask_ide.py",
    "sessions/activity/inspect_processes.py",
    "sessions/activity/supervise.py",
    "sessions/others/prove_inside.py",
}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that nobody sits out. Threads that other tests have left sit out their own."""
    had, here, sleep = list[float](), threading.get_ident(), time.sleep

    def pause(seconds: float) -> None:
        if threading.get_ident() == here:
            had.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    return had


def looks(*seen: object) -> Callable[[], object]:
    left = iter(seen)
    return lambda: next(left)


def test_it_looks_until_it_is_enough(pauses: list[float]) -> None:
    assert waiting.wait_until(looks(0, "", "there"), pause=2) == "there"
    assert pauses == [2.0, 2.0]
    assert waiting.wait_until(looks(1, 2, 3), enough=lambda seen: seen == 3) == 3


def test_a_time_that_runs_out_gives_what_was_seen_last(pauses: list[float]) -> None:
    assert waiting.wait_until(looks(0, None), seconds=0) == 0
    assert waiting.wait_until(looks(0, None, 1), attempts=2) is None
    assert not pauses[1:]


def test_pauses_follow_the_number_of_attempts(pauses: list[float]) -> None:
    waiting.wait_until(looks(0, 0, 0, 1), pause=lambda number: 0.5 * 2**number)
    assert pauses == [1.0, 2.0, 4.0]


def test_there_is_no_pause_after_the_last_attempt(pauses: list[float]) -> None:
    between = (1.0, 2.0)
    with pytest.raises(OSError, match="third"):
        waiting.retry(
            failing(OSError("first"), OSError("second"), OSError("third")),
            OSError,
            attempts=len(between) + 1,
            pause=lambda number: between[number - 1],
        )
    assert pauses == [*between]


def failing(*errors: Exception | None) -> Callable[[], str]:
    left = iter(errors)

    def attempt() -> str:
        if error := next(left):
            raise error
        return "done"

    return attempt


def test_a_failure_is_attempted_again_and_the_last_is_raised(pauses: list[float]) -> None:
    assert waiting.retry(failing(OSError(1), OSError(2), None), OSError) == "done"
    with pytest.raises(OSError, match="2"):
        waiting.retry(failing(OSError(1), OSError(2), None), OSError, attempts=2)
    with pytest.raises(OSError, match="1"):
        waiting.retry(failing(OSError(1), None), OSError, seconds=0)
    with pytest.raises(KeyError):
        waiting.retry(failing(KeyError(1), None), OSError)


def test_what_a_look_raises_ends_the_waiting(pauses: list[float]) -> None:
    with pytest.raises(KeyboardInterrupt):
        waiting.wait_until(lambda: (_ for _ in ()).throw(KeyboardInterrupt), seconds=10)
    assert not pauses


def test_a_rest_ends_in_time_or_when_it_is_over() -> None:
    began = time.monotonic()
    waiting.rest(0.2, pause=60)
    assert 0.2 <= time.monotonic() - began < 30
    waiting.rest(600, looks(False, True), pause=0.01)  # type: ignore[arg-type]
    assert time.monotonic() - began < 60


class Enough(BaseException):
    """Ends what never ends."""


def test_a_task_that_fails_is_left_alone_for_longer(pauses: list[float]) -> None:
    told, outcomes = list[Exception](), iter([None, OSError(1), OSError(2), OSError(3), None, Enough()])

    def task() -> None:
        if error := next(outcomes):
            raise error

    with pytest.raises(Enough):
        waiting.forever(task, told.append, pause=1, longest=5)
    assert pauses == [1, 2, 4, 5, 1] and len(told) == 3


def sleeps(path: Path) -> Iterator[int]:
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "sleep" in text else ():
        match node:
            case ast.Call(func=ast.Name("sleep") | ast.Attribute(ast.Name("time"), "sleep")):
                yield node.lineno


def test_nothing_else_waits_in_another_way() -> None:
    others = {
        f"{name}:{line}"
        for path in FLOWS.rglob("*.py")
        if (name := str(path.relative_to(FLOWS))) not in ALONE
        for line in sleeps(path)
    }
    assert not others, "see flows/core/waiting.py"
