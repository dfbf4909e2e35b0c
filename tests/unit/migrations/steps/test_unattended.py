"""Events in a new container between two processes that carry its move out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flows.migrations.move import Entry, Phase
from flows.migrations.move_steps import Code
from flows.migrations.steps.unattended import TEXTS, alone, since
from flows.sessions.model import Container, Running

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
STARTS = (Entry("start", Phase.intent, at=AT),)
ANSWERED = (*STARTS, Entry("start", Phase.done, at=AT), Entry("answer", Phase.done, at=AT))


def new(running: Running, started: float | None = None, ended: float | None = None) -> Container:
    """One that started and ended so many seconds after the start was begun."""
    times = [None if seconds is None else AT + timedelta(seconds=seconds) for seconds in (started, ended)]
    return Container("refit-ada-2", "ada", 2, "sha256:2", running, None, 0, *times)


@pytest.mark.parametrize(
    ("containers", "happened"),
    [
        (None, None),
        (new(Running.created), None),
        (new(Running.running, 0.3), Code.unwatched),
        (new(Running.stopped, 0.3, 0.9), None),  # it ended at once
        (new(Running.stopped, -60, 1.5), None),  # it waited for its home, and ended at once when it came
        (new(Running.stopped, 0.3, 60), Code.unwatched_ended),
        (new(Running.stopped, -60, -5), None),  # before, while somebody watched
        (new(Running.stopped), Code.unwatched_ended),  # the engine doesn't say when
        (new(Running.created, 0.3), Code.unwatched_ended),  # so Podman calls it after a reboot
    ],
)
def test_what_nobody_has_seen(containers: Container | None, happened: Code | None) -> None:
    assert since(STARTS, containers) is happened
    assert since((), containers) == since([Entry("stop", Phase.intent, at=AT)], containers) is None


@pytest.mark.parametrize(
    ("entries", "happened", "says"),
    [
        (STARTS, None, [True, True, False]),
        (ANSWERED, None, [False, True, False]),
        (STARTS, Code.unwatched, [False, True, False]),
        (ANSWERED, Code.unwatched, [False, True, False]),
        (STARTS, Code.unwatched_ended, [False, False, False]),
    ],
)
@pytest.mark.parametrize("phase", [Phase.interrupted, Phase.reopened])
def test_whether_surely_nobody_was_there(
    entries: tuple[Entry, ...], happened: Code | None, says: list[bool], phase: Phase
) -> None:
    lines = [*entries, Entry("", phase, TEXTS.get(happened, None), at=AT, code=happened)]
    assert [alone(lines, used) for used in (None, False, True)] == says
