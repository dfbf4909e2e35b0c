"""Services of a Hub that are killed or stand still."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from flows import services
from flows.services import embedded
from flows.services.process import supervisor_of
from tests.support.hub import Hub
from tests.support.waiting import wait_until


def process(hub: Hub, name: str) -> int:
    """The pid of a service of a Hub."""
    pid = next(one for one in services.status(hub.settings) if one.name == name).pid
    assert pid
    return pid


@contextmanager
def standing_still(hub: Hub, name: str) -> Iterator[None]:
    """Let a service of a Hub stand still inside."""
    pid = process(hub, name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def kill(hub: Hub, name: str) -> None:
    """Kill a service of a Hub, which its supervisor starts again soon."""

    def state() -> services.ServiceState:
        return next(one for one in services.status(hub.settings) if one.name == name)

    pid = process(hub, name)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid) or not state().running)


def kill_for_good(hub: Hub) -> None:
    """Kill the Hub, and let its supervisor not start it again. It stands still when it is told to end."""
    with standing_still(hub, "hub"):
        service = embedded.hub(hub.settings)
        supervisor_of(service).let_go(service)
        kill(hub, "hub")
