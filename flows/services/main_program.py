"""The main program of a container: it waits for its end, and for that of processes that nobody else waits for."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

_ENDS = (signal.SIGTERM, signal.SIGINT)


def until_told_to_end() -> None:
    """Wait for SIGTERM or SIGINT; processes that have lost their parents meanwhile don't stay as zombies."""
    awaited = {*_ENDS, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        _collect()
        while signal.sigwait(awaited) not in _ENDS:
            _collect()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _collect() -> None:
    """Take note of the end of all children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
