"""Progress of long work, for those who watch it: one line per thing, each with a state.

Effects call `report`; the command line subscribes a live table, a worker subscribes nothing. Plain and process-wide,
because the work runs in the threads of a task runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where one thing is."""

    waiting = "waiting"
    running = "running"
    done = "done"
    reused = "reused"
    failed = "failed"


@dataclass(frozen=True)
class Report:
    """`thing` is the name of the line (a stage, an image, a move), `state` where it is, `note` what it does now."""

    thing: str
    state: State
    note: str = ""


Listener = Callable[[Report], None]
_listeners: list[Listener] = []


def report(thing: str, state: State, note: str = "") -> None:
    """Tell every listener about one thing."""
    for listener in tuple(_listeners):
        listener(Report(thing, state, note))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send all reports to `listener` inside the `with` block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def reported(thing: str, note: str = "") -> Iterator[None]:
    """Report `thing` as running inside the `with` block, then as done or failed."""
    report(thing, State.running, note)
    try:
        yield
    except BaseException as error:
        report(thing, State.failed, str(error).partition("\n")[0])
        raise
    report(thing, State.done)
