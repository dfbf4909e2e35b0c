"""Locks of this machine, which are files: one is free at once when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def taken(path: Path, *, shared: bool = False, wait: bool = True) -> IO[str] | None:
    """Hold a lock for as long as the file that is returned stays open; its content stays.

    Args:
        path: the lock file, made if need be.
        shared: with others that share it.
        wait: for another holder; else there is no file then.
    """
    file = open(path, "a+", encoding="utf-8", opener=_private)  # noqa: SIM115 - it stays open
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def one_at_a_time(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock file `path`, waiting for another holder; `shared`: with others that share it."""
    file = taken(path, shared=shared)
    assert file, "it is waited for"
    with file:
        yield


@contextmanager
def if_alone(path: Path) -> Iterator[bool]:
    """Hold the lock file `path` if nobody else does; says whether."""
    file = taken(path, wait=False)
    if file is None:
        yield False
        return
    with file:
        yield True
