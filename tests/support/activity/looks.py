"""Looks at a session, made up: its processes, kernels and what a judge says of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from flows.sessions.activity.evidence import Activity, Kernel, Look, Process
from flows.sessions.activity.verdict import judge

NOW = 1_800_000_000.0
BEGAN = NOW - 100_000
HOUR = timedelta(hours=1)
INIT = Process(1, 0, ("/run/podman-init", "--", "start"), started=BEGAN, session=1)
MAIN = Process(7, 1, ("/opt/app-root/bin/python", "/opt/app-root/bin/jupyter-lab"), started=BEGAN, session=1)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def process(pid: int, *argv: str, **more: Any) -> Process:
    return Process(
        **{"pid": pid, "parent": 7, "argv": argv, "session": pid, "group": pid, "started": NOW - 9000, **more}
    )


def in_terminal(pid: int, *argv: str, **more: Any) -> Process:
    given = {"terminal": "/dev/pts/0", "stdin": "/dev/pts/0", "foregrounds": (pid,), "waits": "terminal"}
    return process(pid, *argv, **{**given, **more})


def seen(*processes: Process, helpers: tuple[str, ...] = (), **more: Any) -> Activity:
    return judge(Look(NOW, (INIT, MAIN, *processes), **more), helpers)


def kernel(state: str = "idle", used: float = 9000.0, variables: tuple[str, ...] | None = ()) -> dict[str, Any]:
    """A kernel that was used so many seconds ago, and its process, as arguments of `seen`."""
    return {"kernels": (Kernel("1234abcd-0", "python3", state, at(NOW - used), variables),)}
