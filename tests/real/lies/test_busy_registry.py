"""A registry that is busy is asked again when it says so, and no longer than the settings let."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from threading import Event

import pytest

from flows.core import progress
from flows.core.programs import command
from flows.core.progress import Report, State
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.images.registry_errors import NoAnswer
from tests.support.liars import Request, Said, honest
from tests.support.lies import LAYER, Scene, always, client, download, find, write
from tests.support.waiting import PATIENCE, at_most, wait_until


@dataclass
class Busy:
    """Says that it is busy, so many times; notes when it was asked."""

    times: int
    status: int = 503
    headers: Callable[[], dict[str, str]] = dict
    asked: list[float] = field(default_factory=list)

    def __call__(self, _: Request, said: Said) -> Said:
        self.asked.append(time.monotonic())
        if len(self.asked) > self.times:
            return said
        return Said(self.status, {"content-length": "0", **self.headers()})


@pytest.fixture
def patient(scene: Scene, settings: Settings) -> Registry:
    """A client that waits for as long as tests do."""
    return client(settings, scene.liar.port, registry_wait_seconds=PATIENCE)


@pytest.mark.parametrize("status", [429, 503])
def test_a_fifth_of_answers_busy_with_a_time_to_wait(scene: Scene, patient: Registry, status: int) -> None:
    count = iter(range(10_000))

    def lie(_: Request, said: Said) -> Said:
        return Said(status, {"content-length": "0", "retry-after": "0"}) if next(count) % 5 == 0 else said

    scene.hear(lie)
    for _ in range(10):
        assert find(patient)
        assert download(patient) == LAYER
        assert write(patient)


def test_a_registry_is_left_alone_as_long_as_it_asks(
    scene: Scene, patient: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    busy, reports = Busy(1, headers=lambda: {"retry-after": "1"}), list[Report]()
    patient.ping()
    scene.hear(busy)
    with progress.listening(reports.append), caplog.at_level("WARNING", "refit.registry"):
        assert find(patient)
    first, second = busy.asked
    assert second - first >= 1
    assert [report.state for report in reports] == [State.waiting, State.done]
    assert "asking again in 1 s" in caplog.text


def test_it_is_left_alone_until_a_date(scene: Scene, patient: Registry) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    scene.hear(Busy(1, 429, lambda: {"retry-after": format_datetime(until, usegmt=True)}))
    assert find(patient)
    assert datetime.now(UTC) >= until


def test_one_that_was_waited_for_in_vain_is_not_waited_for_again(scene: Scene) -> None:
    scene.hear(Busy(10_000))

    def seconds_in_vain() -> float:
        started = time.monotonic()
        with pytest.raises(NoAnswer, match="is busy"):
            find(scene.registry)
        return time.monotonic() - started

    assert seconds_in_vain() < at_most(30.0)
    wait_until(lambda: seconds_in_vain() < 2.9)  # this machine may get nothing done for a while
    scene.hear(always(Said(503, {"content-length": "0", "retry-after": "3600"})))
    with pytest.raises(NoAnswer, match="is busy"):
        find(scene.registry)
    scene.hear(honest)
    assert find(scene.registry)


def test_what_is_to_end_waits_for_no_registry(scene: Scene) -> None:
    over = Event()
    over.set()
    scene.hear(Busy(10_000, headers=lambda: {"retry-after": "2"}))
    with command.stopping(over), pytest.raises(NoAnswer, match="is busy"):
        find(scene.registry)
