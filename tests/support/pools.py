"""Pools of homes in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.homes.pool import LEAST, Pool
from tests.support.waiting import wait_until

_FILLER = "filler"


@contextmanager
def smallest_pool(home: Path) -> Iterator[Pool]:
    """The smallest pool that there can be, mounted for the `with` block; `home` is that of Refit."""
    pool = Pool(Settings(home=home))
    pool.create(LEAST)
    try:
        yield pool
    finally:
        command.run(["umount", pool.folder], root=True, accepted=(0, 1, 32))


def unmount(folder: Path) -> None:
    """Unmount a file system, as soon as nobody is in it any more."""
    wait_until(lambda: command.run(["umount", folder], root=True, accepted=(0, 32)).exit_code == 0)


def fill(pool: Pool, left: int) -> None:
    """Let the pool have so many bytes left; 0: let the last one be written, too."""
    make_room(pool)
    if left:
        command.run(["fallocate", "--length", str(pool.room().free - left), pool.folder / _FILLER], root=True)
    else:
        to = pool.folder / _FILLER
        command.run(["dd", "if=/dev/zero", f"of={to}", "bs=64K", "status=none"], root=True, accepted=(1,))


def make_room(pool: Pool) -> None:
    """Undo `fill`."""
    command.run(["rm", "-f", pool.folder / _FILLER], root=True)
    command.run(["btrfs", "filesystem", "sync", pool.folder], root=True)
