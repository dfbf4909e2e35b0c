"""One at a time on this machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, waiting for whoever holds it; it is free at once when its holder dies."""
    with open(path, "w", opener=_private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def if_alone(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` if nobody else does; says whether."""
    with open(path, "w", opener=_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
