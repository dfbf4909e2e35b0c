"""A snapshot of a large home in the pool, and the way back to it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import quantiles

from bench.results import Row, seconds_of
from flows.catalog.model import Access
from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import Pool
from flows.sessions.model import Session, TokenRef

SIZE, FILES, POOL = 10_000_000_000, 2_000, 13_000_000_000
SAVED = 20  # files that programs save while they are stopped
ROUNDS, GOAL = 60, 0.05
UID = 234_569


def run() -> list[Row]:
    """Snapshot and rollback of a home of 10 GB in the pool, of which something was saved just before."""
    with tempfile.TemporaryDirectory(prefix="refit-bench-") as folder:
        settings = Settings(home=Path(folder), session_home=0.0)  # it has the whole pool
        pool = Pool(settings)
        pool.create(POOL)
        try:
            return _measured(LocalHomes(settings))
        finally:
            command.run(["umount", pool.folder], root=True)


def _measured(homes: LocalHomes) -> list[Row]:
    ref = homes.make("ada", UID)
    home, session = folder_of(ref), Session("ada", "p", "2026a", "sha256:0", UID, ref, TokenRef("/token"), Access())
    for number in range(FILES):
        (home / f"file-{number}").write_bytes(os.urandom(SIZE // FILES))
    os.sync()
    taken, restored = [], []
    for number in range(ROUNDS):
        _save(home, number)
        taken.append(seconds_of(lambda: homes.delta(session, "move")))
        _save(home, number + ROUNDS)
        restored.append(seconds_of(lambda: homes.restore(session, "move")))
    same = all((home / f"saved-{n}").read_bytes() == bytes([ROUNDS - 1]) * 100_000 for n in range(SAVED))
    size = f"of a home of 10 GB in {FILES:,} files, {SAVED} of them just saved, p95 of {ROUNDS}"
    return [
        _row(f"snapshot in the pool {size}", taken, same),
        _row(f"rollback in the pool {size}", restored, same),
    ]


def _save(home: Path, number: int) -> None:
    for file in range(SAVED):
        (home / f"saved-{file}").write_bytes(bytes([number]) * 100_000)


def _row(name: str, seconds: list[float], same: bool) -> Row:
    slow = quantiles(seconds, n=20)[-1]
    return Row(name, "ms", f"≤ {GOAL * 1000:g} ms", slow * 1000, same and slow <= GOAL)
