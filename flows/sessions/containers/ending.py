"""Ends what runs in a container, from the host: a program inside it would take longer to start than what it does.

Needs root. A user who isn't root runs this module as a program: `python -m flows.sessions.containers.ending PID
SECONDS`, or with a mark for `end_marked` alone.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from flows.core import fence
from flows.core.programs import command
from flows.core.waiting import wait_until

# Time for processes to go after SIGKILL, where SIGTERM didn't end them (seconds).
KILLED_SECONDS = 10.0
# The variable that tells apart what was started in a container by one call of the engine.
MARK = "REFIT_EXEC"
_ENGINE, _DRAIN_SECONDS = "conmon", 2.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Process:
    """One in a container.

    Attributes:
        pid: as the host knows it.
        parent: the pid of its parent.
        started: clock ticks since boot.
        deaf: it ignores SIGTERM, as shells do that wait for a person.
        terminal: it has a controlling terminal, as shells of people have and kernels don't.
    """

    pid: int
    parent: int
    started: int
    deaf: bool
    terminal: bool = False


def end(first: int, grace: float) -> bool:
    """SIGTERM to every process of a container, its main program last, then SIGKILL; returns when none is left.

    With the main program the container ends, and whatever was still saving with it. A process that ignores SIGTERM
    isn't waited for.

    Args:
        first: pid of its first process, which passes signals on to the main program.
        grace: seconds from SIGTERM to SIGKILL.

    Returns:
        whether it went without SIGKILL.

    Raises:
        OSError: it isn't the first process of a container, or doesn't end.
    """
    until = time.monotonic() + grace
    space = _space(first)
    if space == _space(os.getpid()):
        raise OSError(f"{first} is in no container")
    with ExitStack() as opened:
        init = _open(first, opened)
        if _space(first) != space:
            raise ProcessLookupError(first)
        others = _others(first, space)
        main = main_program(first, others)
        for process in others:
            if process.pid != main:
                _tell(process.pid, space)
        wait_until(lambda: not waited_for(main, _others(first, space)), seconds=grace, pause=_POLL_SECONDS)
        _send(init, signal.SIGTERM)
        if _ends(init, until - time.monotonic()):
            return True
        _send(init, signal.SIGKILL)
        if not _ends(init, KILLED_SECONDS):
            raise TimeoutError(f"{first} doesn't end")
        return False


def end_marked(mark: str) -> None:
    """SIGKILL to what one call of the engine has started in a container, and to what copies its output for that call.

    The engine's client may be gone: its program runs on in the container, and is copied for as long as it prints.
    """
    with ExitStack() as opened:
        engines = list[int]()

        def kill_all() -> bool:
            marked = _marked(mark)
            for pid in marked:
                with suppress(OSError):
                    parent = _read(Path("/proc", str(pid)), pid)
                    process = _open(pid, opened)
                    if parent and Path(f"/proc/{parent.parent}/comm").read_text().strip() == _ENGINE:
                        engines.append(_open(parent.parent, opened))
                    if pid in _marked(mark):  # else another process has this pid by now
                        _send(process, signal.SIGKILL)
            return not marked

        wait_until(kill_all, seconds=KILLED_SECONDS, pause=_POLL_SECONDS)
        for engine in engines:
            if not _ends(engine, _DRAIN_SECONDS):  # something that has lost its mark still prints
                _send(engine, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    mark_variable, pids = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended
                if mark_variable in (folder / "environ").read_bytes().split(b"\0") and _read(folder, int(folder.name)):
                    pids.append(int(folder.name))
    return pids


def is_childless(first: int) -> bool:
    """Whether the main program of a container has started nothing that still runs; `first` as in `end`.

    Shells at terminals don't count.

    Raises:
        OSError: it has ended, or isn't ours to look at.
    """
    others = _others(first, _space(first))
    main = main_program(first, others)
    return bool(main) and not started_by(main, others)


def main_program(first: int, others: Iterable[Process]) -> int:
    """The pid of the oldest child of the first process; 0: it has none. Pure."""
    children = [process for process in others if process.parent == first]
    return min(children, key=lambda process: (process.started, process.pid)).pid if children else 0


def waited_for(main: int, others: Iterable[Process]) -> list[int]:
    """The pids of those that may still save something before the main program is ended. Pure."""
    return [process.pid for process in others if process.pid != main and not process.deaf]


def started_by(main: int, others: Iterable[Process]) -> list[int]:
    """The pids of what the main program has started, shells at terminals aside: kernels, language servers. Pure."""
    return [process.pid for process in others if process.parent == main and not process.terminal]


def read_status(pid: int, status: Mapping[str, str], started: int, terminal: int = 0) -> Process | None:
    """A process by its `/proc/<pid>/status`; none: it is dead and only not yet collected. Pure.

    Args:
        pid: as the host knows it.
        status: the lines of that file.
        started: clock ticks since boot.
        terminal: the number of its controlling terminal; 0: it has none.
    """
    if status["State"].startswith(("Z", "X")):
        return None
    deaf = bool(int(status["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1)
    return Process(pid, int(status["PPid"]), started, deaf, bool(terminal))


def _others(first: int, space: str) -> list[Process]:
    """All processes of a container but its first."""
    others = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (pid := int(folder.name)) != first:
            with suppress(OSError):  # it has ended
                if _space(pid) == space and (process := _read(folder, pid)):
                    others.append(process)
    return others


def _read(folder: Path, pid: int) -> Process | None:
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return read_status(pid, status, started=int(fields[19]), terminal=int(fields[4]))


def _space(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def _tell(pid: int, space: str) -> None:
    with suppress(OSError), ExitStack() as opened:
        process = _open(pid, opened)
        if _space(pid) == space:  # else another process has this pid by now
            _send(process, signal.SIGTERM)


def _open(pid: int, opened: ExitStack) -> int:
    process = os.pidfd_open(pid)
    opened.callback(os.close, process)
    return process


def _send(process: int, number: signal.Signals) -> None:
    fence.check()
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)


def _ends(process: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(max(0, math.ceil(seconds * 1000))))


def as_root(first: int, grace: float) -> None:
    """`end`; as root, whoever calls.

    Raises:
        OSError, ProgramFailed: it can't be done.
    """
    if os.geteuid() == 0:
        end(first, grace)
    else:
        call = [sys.executable, "-I", "-m", __name__, str(first), str(grace)]
        command.run(call, root=True, limit=grace + 2 * KILLED_SECONDS)


def marked_as_root(mark: str) -> None:
    """`end_marked`; as root, whoever calls.

    Raises:
        ProgramFailed: it can't be done.
    """
    if os.geteuid() == 0:
        end_marked(mark)
    else:
        command.run([sys.executable, "-I", "-m", __name__, mark], root=True, limit=3 * KILLED_SECONDS)


if __name__ == "__main__":
    end_marked(sys.argv[1]) if len(sys.argv) == 2 else end(int(sys.argv[1]), float(sys.argv[2]))
