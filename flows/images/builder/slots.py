"""How many stages are built here at once, whichever runs want them: each build holds a slot.

A slot is a locked file, free at once when its holder dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from flows.core.errors import RefitError
from flows.core.file_locks import if_alone, taken
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.waiting import wait_until

# The first look again comes soon, because it is mostly another thread of this run that is about to take its own.
_FIRST_PAUSE, _PAUSE = 0.001, 0.1


@contextmanager
def slot(settings: Settings, count: int, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a slot inside the `with` block, waiting for one as long as it takes.

    Args:
        settings: where the slots are.
        count: how many there are, if nothing is built here now; else as many as there were when that began.
        on_wait: called if that takes more than a moment.

    Raises:
        RefitError: the run is over, and nothing is to be built any more.
    """
    folder = settings.folder("locks", "slots")
    with ExitStack() as stack:
        # Those that wait go before those that come: a run whose stages follow each other would keep all slots for
        # itself.
        with _first_free([folder / "next"], on_wait) as note:
            slots = [folder / str(number) for number in range(_agreed(note, folder, count))]
            stack.enter_context(_first_free(slots, on_wait))
        yield


def _agreed(note: IO[str], folder: Path, count: int) -> int:
    """How many slots there are; memory that builds have taken meanwhile makes them no fewer."""
    note.seek(0)
    if (limit := note.read()) and not all(map(_is_free, folder.glob("[0-9]*"))):
        return int(limit)
    note.truncate(0)
    note.write(str(count))
    note.flush()
    return count


def _is_free(path: Path) -> bool:
    with if_alone(path) as free:
        return free


@contextmanager
def _first_free(paths: Sequence[Path], on_wait: Callable[[], None]) -> Iterator[IO[str]]:
    """Lock the first of some files that nobody holds."""

    def take() -> IO[str] | None:
        if (free := next(filter(None, map(_locked, paths)), None)) is None and command.is_over():
            raise RefitError("The run is over; nothing is built any more.")
        return free

    def pause(number: int) -> float:
        seconds = _FIRST_PAUSE * 2.0 ** min(number - 1, 30)
        if seconds / 2 < _PAUSE <= seconds:
            on_wait()
        return min(seconds, _PAUSE)

    held = wait_until(take, enough=lambda free: free is not None, pause=pause)
    assert held, "it is waited for without an end"
    with held:
        yield held


def _locked(path: Path) -> IO[str] | None:
    return taken(path, wait=False)
