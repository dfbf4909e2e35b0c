"""Room on a disk: space that several copies find free at the same time is there only once.

A process that is about to copy notes how much that takes, under a lock for each file system. A note holds as long as
its file is locked, so that of a process that was killed is nobody's any more.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

from flows.core.errors import RefitError
from flows.core.file_locks import if_alone, one_at_a_time, taken
from flows.core.formatting import megabytes
from flows.core.waiting import wait_until

SPARE = 250_000_000  # bytes
_LOOK_SECONDS = 0.2


class NoRoom(RefitError):
    """Something can't be copied, because the copy would take too much space."""


@contextmanager
def reserved(notes: Path, where: Path, size: int) -> Iterator[None]:
    """Have room for a copy of `size` bytes inside the block; waits while there isn't because of other copies.

    Args:
        notes: folder of the notes, the same for all.
        where: a folder on the disk.
        size: bytes that are there to be copied; 0: nothing is looked for.

    Raises:
        NoRoom: there isn't, were there no other copies either.
    """
    if not size:
        yield
        return
    note = wait_until(lambda: _note(notes, where, size), enough=lambda note: note is not None, pause=_LOOK_SECONDS)
    assert note, "it is waited for without an end"
    with note:
        try:
            yield
        finally:
            Path(note.name).unlink(missing_ok=True)


def lacking(size: int, free: int) -> int:
    """Bytes that are missing for a copy of `size` bytes that grow meanwhile; 0: there is room. Pure."""
    return max(0, with_growth(size) + SPARE - free)


def with_growth(size: int) -> int:
    """Bytes that a copy of something takes in which somebody works on meanwhile. Pure."""
    return size + size // 10


def _note(notes: Path, where: Path, size: int) -> IO[str] | None:
    """Note that the room is ours, as long as the file is open; none: others have to finish first."""
    disk = where.stat().st_dev
    with one_at_a_time(notes / f"{disk}.lock"):
        others = sum(_held(note) for note in notes.glob(f"{disk}-*"))
        free = shutil.disk_usage(where).free
        if not lacking(size, free - others):
            return taken(notes / f"{disk}-{with_growth(size)}-{uuid4().hex}")
    if missing := lacking(size, free):
        raise NoRoom(
            f"There is no room for a copy of {megabytes(size)}: {megabytes(missing)} are missing.",
            why=f"{megabytes(free)} are free in {where}, and {megabytes(SPARE)} stay for everybody else.",
            hint="make room on that disk.",
        )
    return None


def _held(note: Path) -> int:
    """Bytes that somebody counts on, as the note's name says; one that nobody holds is removed."""
    with if_alone(note) as free:
        if not free:
            return int(note.name.split("-")[1])
        note.unlink(missing_ok=True)
    return 0
