"""Ending processes with all their descendants."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

import psutil

GRACE_SECONDS = 5.0
_KILL_SECONDS = 10.0  # for sudo and kill


def end_tree(*pids: int, grace: float = GRACE_SECONDS) -> None:
    """End processes and all their descendants: SIGTERM, `grace` seconds, SIGKILL."""
    tree = [process for pid in pids for process in _tree(pid)]
    _signal(tree, signal.SIGTERM)
    alive = _running_after(grace, tree)
    _signal({process for parent in alive for process in _tree(parent.pid)}, signal.SIGKILL)
    _running_after(grace, alive)


def end_child(child: int) -> None:
    """End a child of this process whose exit code nobody asks for any more, with all its descendants."""
    end_tree(child)
    with suppress(ChildProcessError):  # `sh` has asked
        os.waitpid(child, os.WNOHANG)


def _running_after(seconds: float, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that haven't ended after some seconds.

    The exit code of a child stays for the thread that began it; `psutil` would take it.
    """
    end = monotonic() + seconds
    return [process for process in processes if not _ends_by(end, process)]


def _ends_by(end: float, process: psutil.Process) -> bool:
    try:
        opened = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.is_running():  # the number is another process's, and may have been when it was opened
            return True
        waiting = select.poll()
        waiting.register(opened, select.POLLIN)
        return bool(waiting.poll(max(0, end - monotonic()) * 1000))
    finally:
        os.close(opened)


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    return []


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    roots = []
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied:  # it runs as root, by sudo
            roots.append(str(process.pid))
    if roots:
        # One may have ended before its turn came. Not by `command.run`, which ends programs by this.
        words = ["sudo", "-n", "--", "kill", f"-{number.name.removeprefix('SIG')}", *roots]
        with suppress(subprocess.TimeoutExpired, FileNotFoundError):
            subprocess.run(words, timeout=_KILL_SECONDS, check=False, stdin=subprocess.DEVNULL, capture_output=True)
