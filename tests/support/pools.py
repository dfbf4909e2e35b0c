"""Pools of homes in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.homes.pool import LEAST, Pool


@contextmanager
def smallest_pool(home: Path) -> Iterator[Pool]:
    """The smallest pool that there can be, mounted for the `with` block; `home` is that of Refit."""
    pool = Pool(Settings(home=home))
    pool.create(LEAST)
    try:
        yield pool
    finally:
        command.run(["umount", pool.folder], root=True, accepted=(0, 1, 32))
