"""The same for several things at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flows.core.threads import at_once, each, within
from tests.support.waiting import PATIENCE


def test_results_are_in_the_order_of_the_items_and_nothing_needs_no_thread() -> None:
    assert at_once(str, range(100), 7) == tuple(map(str, range(100)))
    assert each(len, ["a", "bb", "a"]) == {"a": 1, "bb": 2}
    before = threading.active_count()
    assert at_once(str, ()) == () and each(str, ()) == {}
    assert threading.active_count() == before


def test_as_many_run_at_once_as_may_and_no_more() -> None:
    all_there, lock, running, most = threading.Barrier(3, timeout=PATIENCE), threading.Lock(), 0, 0

    def work(_: int) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_there.wait()  # breaks unless three are here
        with lock:
            running -= 1
        return threading.current_thread().name

    names = at_once(work, range(9), 3)
    assert most == 3
    assert all("work" in name for name in names)


def test_the_first_error_of_the_order_is_raised_and_what_has_not_begun_is_left_out() -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        at_once(work, range(1000), 1)
    assert len(begun) < 1000
    assert not [thread for thread in threading.enumerate() if "work" in thread.name]


def test_what_threads_run_within_is_left_before_they_are_waited_for() -> None:
    hurry = threading.Event()

    @contextmanager
    def within() -> Iterator[None]:
        try:
            yield
        finally:
            hurry.set()

    def work(number: int) -> bool:
        if number == 0:
            raise KeyboardInterrupt
        return hurry.wait(PATIENCE)  # were they waited for first, it would be set too late

    with pytest.raises(KeyboardInterrupt):
        at_once(work, range(2), 2, within=within())
    assert hurry.is_set()


def test_a_call_is_waited_for_no_longer_than_that() -> None:
    assert within(PATIENCE, lambda: "done") == "done"
    goes_on = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.01, lambda: goes_on.wait(PATIENCE))
    goes_on.set()
    with pytest.raises(KeyError):
        within(PATIENCE, lambda: {}["a failure of its own"])


# glibc tells of each of its arenas as a heap.
_ARENAS = """
import ctypes, sys, threading
from flows.core.threads import share_memory
if "shared" in sys.argv:
    share_memory()
together = threading.Barrier(6)
def work():
    block = bytes(10_000)
    together.wait()
threads = [threading.Thread(target=work) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def test_hundreds_of_threads_share_what_one_has_needed() -> None:
    def arenas(*words: str) -> int:
        call = [sys.executable, "-c", _ARENAS, *words]
        return subprocess.run(call, check=True, capture_output=True, text=True).stdout.count("<heap nr=")

    assert arenas("shared") == 1
    assert arenas() > 1
