"""Fixtures that all tests share: a home of one's own, free ports, waiting without hoping."""

from __future__ import annotations

import os
import random
import signal
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pytest
from filelock import FileLock, Timeout
from hypothesis import settings as examples

from flows.core.settings import Settings, Span
from tests.guard import guard

# Prefect fills this folder when it is imported, and nobody's own is to be touched. It goes when this process ends.
_PREFECT_HOME = tempfile.TemporaryDirectory(prefix="refit-tests-")
os.environ["PREFECT_HOME"] = _PREFECT_HOME.name
# Flows that tests call without a server have a temporary one. Refit itself has none.
os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "true"
guard(_PREFECT_HOME.name)
# A shell lets what it starts in the background ignore Ctrl-C, and with it all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONG_SECONDS = 3600
# Seconds. A machine whose cores are lent to others may get nothing done for two minutes; who waits for what comes soon
# loses nothing by that.
PATIENCE = 600
PATIENTLY: dict[str, Any] = {"trust_env": False, "timeout": PATIENCE}  # how a program on loopback is asked
_SPANS = Path(tempfile.gettempdir(), "refit-tests-spans")
_HELD: list[FileLock] = []
T = TypeVar("T")

pytest_plugins = ["tests.machine"]

# The same examples each time, so that what fails is the change's fault; without it they are others each time.
examples.register_profile("repeatable", derandomize=True)


@pytest.hookimpl(trylast=True)  # after those that don't run were left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test that is marked long an hour, unless it says itself how long it takes; put the files in order."""
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))
    order = _in_order(dict.fromkeys(item.path for item in items))
    items.sort(key=lambda item: order[item.path])


def _in_order(files: Iterable[Path]) -> dict[Path, int]:
    """The place of each file.

    The first one makes the image that most others with real programs need: half of those that don't come next, for the
    other processes. The other half comes last, where a file that takes minutes would keep all waiting for one process.
    """
    found = list(files)
    quick = [file for file in found if "unit" in file.parts]
    slow = [file for file in found if "unit" not in file.parts]
    half = len(quick) // 2
    return {file: place for place, file in enumerate([*slow[:1], *quick[:half], *slow[1:], *quick[half:]])}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose home is empty and belongs to this test alone."""
    return Settings(home=tmp_path / "home")


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def free_span() -> Span:
    """Twenty loopback ports in a row, which this process has until it ends, whatever else is tested on this machine."""
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
def serving(handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answer requests on loopback with a handler; gives the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
    """Return as soon as `true()` is so; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"still not so after {seconds:g} s"
        time.sleep(0.02)


def some_long(values: Iterable[T], short: T | tuple[T, ...]) -> list[object]:
    """Parameters of a test of which all but `short` run only with the long tests."""
    kept = short if isinstance(short, tuple) else (short,)
    return [value if value in kept else pytest.param(value, marks=pytest.mark.long) for value in values]
