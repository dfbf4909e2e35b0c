"""Runs a hook of a session's owner: in its container, with nothing but the image's own Python.

All that the hook starts ends with it, whatever became of the one who asked: orphans become children of this
process. Nothing that it prints reaches the engine, which would copy it for ever, but the end of it. The outcome is
printed as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

MOST = 1 << 20
KEPT = 4096
_CHUNK = 1 << 16
_LOOK_SECONDS, _END_SECONDS = 0.05, 10.0
_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h


def supervise(argv: list[str], seconds: float) -> dict[str, object]:
    """Run a hook for so long at most; `code` is what it ended with, none if it was ended: `why` says for what."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    until, left, said = time.monotonic() + seconds, MOST, b""
    try:
        hook = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:  # no interpreter, or not a program at all
        return {"code": 126, "why": "", "said": str(error)}
    assert hook.stdout
    output, why = hook.stdout.fileno(), ""
    os.set_blocking(output, False)
    try:
        while not why:
            over = hook.poll() is not None
            ready, _, _ = select.select([output], [], [], 0 if over else _LOOK_SECONDS)
            chunk = os.read(output, _CHUNK) if ready else b""
            said, left = (said + chunk)[-KEPT:], left - len(chunk)
            if over and (not chunk or left < 0):  # what it left behind may print for ever
                break
            if ready and not chunk:
                time.sleep(_LOOK_SECONDS)  # it has closed its output, and goes on
            why = "output" if left < 0 else "time" if time.monotonic() > until else ""
    finally:
        _end_all()
    return {"code": None if why else _code(hook), "why": why, "said": said.decode(errors="replace")}


def _code(hook: subprocess.Popen[bytes]) -> int:
    """As a shell would say it."""
    code = hook.returncode or 0
    return 128 - code if code < 0 else code


def _end_all() -> None:
    """End all descendants: stopped first, so that none starts another meanwhile."""
    until = time.monotonic() + _END_SECONDS
    while (descendants := _descendants()) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in descendants:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        time.sleep(0.01)


def _descendants() -> list[int]:
    """All that run below this process; those of its children that have ended are collected."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            except OSError:  # it has ended
                continue
            if state != "Z":
                parents[int(folder.name)] = int(parent)
            elif int(parent) == os.getpid():
                _collect(int(folder.name))
    pids, family = list[int](), {os.getpid()}
    while new := [pid for pid, parent in parents.items() if parent in family and pid not in family]:
        family.update(new)
        pids += new
    return pids


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


if __name__ == "__main__":
    print(json.dumps(supervise(sys.argv[2:], float(sys.argv[1]))))
