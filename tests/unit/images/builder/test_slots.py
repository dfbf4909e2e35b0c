"""The number of builds at once here is bounded for all runs together, whether they are threads or processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock

import pytest

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.images.builder.slots import slot
from tests.support.processes import in_a_process
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow


class Run:
    """A build in a thread that holds its slot until it is told to end."""

    def __init__(self, settings: Settings, count: int) -> None:
        self.waits, self.builds, self._end = Event(), Event(), Event()
        self._settings, self._count = settings, count
        self._thread = threading.Thread(target=self._build, daemon=True)
        self._thread.start()

    def _build(self) -> None:
        with slot(self._settings, self._count, self.waits.set):
            self.builds.set()
            self._end.wait(PATIENCE)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def build_until(note: Path, end: Path, settings: Settings) -> None:
    with slot(settings, 1, lambda: None):
        note.touch()
        wait_until(end.exists)


@contextmanager
def another_process(settings: Settings, folder: Path) -> Iterator[Callable[[], None]]:
    """A process that holds a slot, and how to kill it."""
    process = in_a_process(lambda: build_until(folder / "builds", folder / "end", settings))
    wait_until((folder / "builds").exists)
    try:
        yield process.kill
    finally:
        (folder / "end").touch()
        process.join()


def test_never_more_are_built_than_there_are_slots_and_all_are_in_the_end(settings: Settings) -> None:
    lock, now, seen = Lock(), list[int](), list[int]()

    def build(number: int) -> None:
        with slot(settings, 3, lambda: None):
            with lock:
                now.append(number)
                seen.append(len(now))
            threading.Event().wait(0.005)
            with lock:
                now.remove(number)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(build, range(40)))
    assert len(seen) == 40 and max(seen) <= 3


def test_who_finds_no_slot_says_so_and_waits_for_another_process(settings: Settings, tmp_path: Path) -> None:
    with another_process(settings, tmp_path):
        run = Run(settings, 1)
        assert run.waits.wait(PATIENCE) and not run.builds.is_set()
    assert run.builds.wait(PATIENCE)
    run.end()


def test_the_slot_of_a_killed_process_is_free(settings: Settings, tmp_path: Path) -> None:
    with another_process(settings, tmp_path) as kill:
        run = Run(settings, 1)
        assert run.waits.wait(PATIENCE)
        kill()
        assert run.builds.wait(PATIENCE)
    run.end()


def test_who_waits_goes_before_who_comes(settings: Settings) -> None:
    first = Run(settings, 1)
    assert first.builds.wait(PATIENCE)
    waiting = Run(settings, 1)
    assert waiting.waits.wait(PATIENCE)
    late = Run(settings, 1)
    assert late.waits.wait(PATIENCE)
    first.end()
    assert waiting.builds.wait(PATIENCE) and not late.builds.is_set()
    waiting.end()
    assert late.builds.wait(PATIENCE)
    late.end()


def test_memory_that_builds_have_taken_makes_no_slots_fewer(settings: Settings) -> None:
    first = Run(settings, 2)
    assert first.builds.wait(PATIENCE)
    second = Run(settings, 1)
    assert second.builds.wait(PATIENCE)
    third = Run(settings, 9)
    assert third.waits.wait(PATIENCE) and not third.builds.is_set()
    for run in (first, second, third):
        assert run.builds.wait(PATIENCE)
        run.end()
    with slot(settings, 1, lambda: None):  # nobody builds any more: it is counted anew
        beside = Run(settings, 2)
        assert beside.waits.wait(PATIENCE)
    beside.end()


def test_who_waits_when_the_run_ends_builds_nothing(settings: Settings) -> None:
    over = Event()
    first = Run(settings, 1)
    assert first.builds.wait(PATIENCE)
    with command.stopping(over), pytest.raises(RefitError, match="The run is over"), slot(settings, 1, over.set):
        pass
    first.end()
    with slot(settings, 1, lambda: None):
        pass
