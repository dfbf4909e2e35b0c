"""Ends what a run of the tests has left, however that run ends, by `kill -9` too: Prefect's temporary server above all.

Such a server is a child of whichever process needed it first, and knows of nobody's end. All that such a run starts has
the run's own PREFECT_HOME among its variables, unless it was given another.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

GUARDED = "PREFECT_HOME"
LOOKS, BETWEEN = 3, 0.1  # seconds


def guard(home: str) -> None:
    """Start the guard of this process, whose PREFECT_HOME is `home`; the folder goes, too."""
    opened = os.pidfd_open(os.getpid())
    argv = [sys.executable, "-I", __file__, str(opened), home]
    # With a session of its own: the end of all processes of this one must not end it.
    subprocess.Popen(argv, pass_fds=[opened], start_new_session=True, env={}, stdin=subprocess.DEVNULL, cwd="/")
    os.close(opened)


def end_all(home: str) -> None:
    """End each process that has this PREFECT_HOME, and remove the folder.

    A process that calls `exec` has no variables that could be read for a moment, so that one look is not enough.
    """
    clean = 0
    while clean < LOOKS:
        pids = [pid for pid in map(_number, Path("/proc").iterdir()) if pid and _has(pid, home)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        clean = 0 if pids else clean + 1
        time.sleep(BETWEEN)
    shutil.rmtree(home, ignore_errors=True)


def _number(folder: Path) -> int:
    return int(folder.name) if folder.name.isdecimal() else 0


def _has(pid: int, home: str) -> bool:
    with suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"{GUARDED}={home}".encode() in variables
    return False


if __name__ == "__main__":
    waiting = select.poll()
    waiting.register(int(sys.argv[1]), select.POLLIN)
    waiting.poll()
    end_all(sys.argv[2])
