"""Records of processes in files: which of them still run can be told after a crash, and they can be ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flows.core.programs.process_tree import GRACE_SECONDS, end_tree

# The name of a note that isn't whole yet begins with it, and tells all that the note will.
_DRAFT = "."


@dataclass(frozen=True)
class ProcessId:
    """A process that can't be mistaken for a later one with the same pid: boot and start time belong to it."""

    pid: int
    boot: str
    started: str = field(metadata={"unit": "clock ticks since boot"})

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a running process; none if there is none with that pid."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        after_name = stat.rpartition(")")[2].split()  # the name may hold spaces and brackets: proc(5)
        return None if after_name[0] == "Z" else cls(pid, boot, after_name[19])

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self


def note_of(folder: Path | None) -> Callable[[], None] | None:
    """A function by which a process notes itself in this folder before it becomes a program; none: it isn't noted."""
    if folder is None:
        return None

    def note() -> None:
        me = ProcessId.of(os.getpid())
        if me:
            draft = folder / f"{_DRAFT}{me.pid} {me.boot} {me.started}"
            draft.write_text(f"{me.boot} {me.started}\n")
            draft.rename(folder / str(me.pid))

    return note


def noted(folder: Path) -> tuple[ProcessId, ...]:
    """The processes that were noted in `folder` and still run; notes and folder may go meanwhile."""
    notes = list[Path]()
    with suppress(FileNotFoundError):
        notes += folder.iterdir()
    read = (_read_note(note) for note in notes if note.name.isdigit())
    return tuple(process for process in filter(None, read) if process.alive)


def end_for_good(folder: Path, grace: float = GRACE_SECONDS) -> int:
    """As `end_recorded`, and remove the folder: from then on no program that would note itself there starts any more.

    A process that is just about to start one finds no folder, and the program isn't started.
    """
    ended = 0
    while folder.exists():
        ended += end_recorded(folder, grace)
        with suppress(OSError):  # one has noted itself meanwhile
            folder.rmdir()
    return ended


def end_recorded(folder: Path, grace: float = GRACE_SECONDS) -> int:
    """End every process tree that was noted in `folder` and forget it; returns how many still ran."""
    running = noted(folder)
    end_tree(*(process.pid for process in running), grace=grace)
    with suppress(FileNotFoundError):
        for note in filter(_is_over, folder.iterdir()):
            note.unlink(missing_ok=True)
    return len(running)


def _is_over(note: Path) -> bool:
    """Whether what noted itself has ended: processes that begin meanwhile are left to the next look."""
    process = _read_note(note)
    return process is None or not process.alive


def _read_note(note: Path) -> ProcessId | None:
    """The process of a note or of its draft; none of what is neither, such as a way through the fence."""
    with suppress(FileNotFoundError, ValueError):
        if note.name.startswith(_DRAFT):
            pid, boot, started = note.name.removeprefix(_DRAFT).split(" ")
            return ProcessId(int(pid), boot, started)
        if note.name.isdigit():
            boot, _, started = note.read_text().strip().partition(" ")
            return ProcessId(int(note.name), boot, started)
    return None
