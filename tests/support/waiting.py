"""Free ports, servers for a moment, and waiting without hoping."""

from __future__ import annotations

import os
import random
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pytest
from filelock import FileLock, Timeout

from flows.core.outside import NOBODY
from flows.core.settings.spans import Span

# How many times as patient as usual: where all cores are busy with other tests, or lent to others, nothing may happen
# for minutes. `make test` says so; a single test that hangs costs seconds.
PATIENCE = round(30 * float(os.environ.get("REFIT_TEST_PATIENCE", "1")))
"""Seconds for which is waited for what comes soon."""
# How a program on loopback is asked. Without `verify`, each request reads all authorities: 20 ms of CPU.
PATIENTLY: dict[str, Any] = {"trust_env": False, "timeout": PATIENCE, "verify": NOBODY}
_TICK_SECONDS = 0.02
_SPANS = Path(tempfile.gettempdir(), "refit-tests-spans")
# The first ports of spans that whoever started this process has, and gives to it: of those of root, an ordinary user
# can take none.
GIVEN_SPANS = "REFIT_TEST_SPANS"
_GIVEN = [int(first) for first in os.environ.get(GIVEN_SPANS, "").split()]
_HELD: list[FileLock] = []
_PORTS: list[int] = []  # of this process's spans, for `free_port`
T = TypeVar("T")


class _RunningClock:
    """Counts its own short sleeps, each of which takes longer where cores are missing."""

    def __init__(self) -> None:
        self.seconds = 0.0
        Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            self.seconds += _TICK_SECONDS


@cache
def _running_clock(_of_process: int) -> _RunningClock:
    return _RunningClock()


def running_seconds() -> float:
    """Seconds of a clock that stands still while this machine gets nothing done.

    By it, a promise in seconds is measured: for cores that were lost meanwhile a program isn't late.
    """
    return _running_clock(os.getpid()).seconds


def at_most(seconds: float) -> float:
    """A limit for what takes less than so many seconds by itself; higher where many tests run at once.

    There a machine that gets nothing done for seconds would be taken for a program that is late.
    """
    return max(seconds, seconds * PATIENCE / 30)


def free_port() -> int:
    """A loopback port that nobody listens on, and that no other caller is given until this process ends.

    A port that Linux gives to clients could be one's by the time a service is started again.
    """
    while True:
        if not _PORTS:
            span = free_span()
            _PORTS.extend(range(span.first, span.last + 1))
        port = _PORTS.pop()
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def free_span() -> Span:
    """Twenty loopback ports in a row, which this process has until it ends, whatever else is tested on this machine."""
    if _GIVEN:
        first = _GIVEN.pop()
        return Span(first=first, last=first + 19)
    _SPANS.mkdir(exist_ok=True)
    for first in random.sample(range(20_000, 32_000, 20), k=600):  # below those that Linux gives to clients
        lock = FileLock(_SPANS / str(first))
        with socket.socket() as listener, suppress(OSError, Timeout):
            listener.bind(("127.0.0.1", first))
            lock.acquire(timeout=0)
            _HELD.append(lock)
            return Span(first=first, last=first + 19)
    raise AssertionError("no ports are left")


@contextmanager
def serving(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"
) -> Iterator[int]:
    """Answer requests at an address of this machine with a handler; gives the port."""
    server = ThreadingHTTPServer((address, 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wait_until(true: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return as soon as `true()` is so; fail after `seconds`. After a look that takes long it rests as long."""
    began = looked = time.monotonic()
    while not true():
        now = time.monotonic()
        assert now - began < seconds, f"still not so after {seconds:g} s"
        # Some looks start a program, and a long wait has many of them.
        time.sleep(max(0.02, min((now - began) / 20, 0.1), min(now - looked, 1.0)))
        looked = time.monotonic()


def some_long(values: Iterable[T], short: T | tuple[T, ...]) -> list[object]:
    """Parameters of a test of which all but `short` run only with the long tests."""
    kept = short if isinstance(short, tuple) else (short,)
    return [value if value in kept else pytest.param(value, marks=pytest.mark.long) for value in values]
