"""Calls in a child with limits: all memory, all time or the whole process may go, and one test fails."""

from __future__ import annotations

import os
import resource
import select
import signal
from collections.abc import Callable

from flows.core.errors import RefitError

MEMORY = 3 << 30
SECONDS = 20


def apart(call: Callable[[], object]) -> str:
    """The end of a call: `returned …`, the class and text of its `RefitError`, or how the child ended otherwise."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            os.write(writing, _told(call).encode(errors="replace")[:60_000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:  # noqa: PTH123 - a pipe
        waiting = select.poll()  # `select` knows descriptors below 1024 alone
        waiting.register(told, select.POLLIN)
        if not waiting.poll(3000 * SECONDS):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "it hung"
        text = told.read().decode()
    _, status = os.waitpid(child, 0)
    return text or f"it ended with the status {os.waitstatus_to_exitcode(status)}"


def _told(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()!r}"
    except RefitError as error:
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        return f"a traceback: {type(error).__name__}: {error}"
