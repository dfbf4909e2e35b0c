"""Snapshot, clone and rollback of a home of many files in the pool, as a person asks for them, beside rsync."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import quantiles

from bench.results import Row, seconds_of
from flows.core.programs import command
from flows.core.settings import Settings
from flows.migrations.snapshots import snapshot_actions
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.pool import Pool
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from tests.support.homes_alone import added, opened

SIZE, FILES, FOLDERS, POOL = 10_000_000_000, 200_000, 2_000, 26_000_000_000
ROUNDS, CLONES = 20, 3
UID = 234_580


def run() -> list[Row]:
    """Snapshot, clone and rollback of a home of 10 GB in 200,000 files; rsync copies it once."""
    with tempfile.TemporaryDirectory(prefix="refit-bench-") as folder:
        settings = Settings(home=Path(folder), session_home=0.0)  # it has the whole pool
        pool = Pool(settings)
        pool.create(POOL)
        try:
            return _measured(opened(settings), pool)
        finally:
            command.run(["umount", pool.folder], root=True)


def _measured(sessions: Sessions, pool: Pool) -> list[Row]:
    ada = added(sessions)
    _fill(folder_of(ada.home))
    homes, what = sessions.homes, f"of a home of 10 GB in {FILES:,} files in the pool"
    taken = [seconds_of(lambda: snapshot_actions.take(sessions, "ada", "ada")) for _ in range(ROUNDS)]
    first = snapshot_actions.all_of(sessions, ada)[0]
    clones = [seconds_of(partial(_clone, sessions, ada, first.id, n)) for n in range(CLONES)]
    # The next change of the pool waits until so many new owners are written down: that cost of clones has a row.
    after = _back(sessions, ada, first.id)
    command.run(["btrfs", "filesystem", "sync", pool.folder], root=True, limit=600)
    back = [_back(sessions, ada, first.id) for _ in range(ROUNDS)]
    copied = seconds_of(
        lambda: command.run(["rsync", "-a", f"{ada.home}/", pool.folder / "copy"], root=True, limit=3600)
    )
    same = homes.differences(ada, first.id, at_a_glance=True) == ()
    return [
        _row(f"snapshot {what}, p95 of {ROUNDS}", _slow(taken), 0.1, copied, same),
        _row(f"clone {what}, with another owner, slowest of {CLONES}", max(clones), 1.0, copied, same),
        _row(f"rollback {what}, just after {CLONES} clones of it", after, 1.0, copied, same),
        _row(f"rollback {what}, without stop and start of the IDE, p95 of {ROUNDS}", _slow(back), 1.0, copied, same),
    ]


def _fill(home: Path) -> None:
    content = os.urandom(SIZE // FILES)
    for number in range(FILES):
        if number < FOLDERS:
            (home / f"folder-{number}").mkdir()
        (home / f"folder-{number % FOLDERS}" / f"file-{number}").write_bytes(content[:-8] + number.to_bytes(8))
    os.chown(home, home.stat().st_uid, 0)
    command.run(["chown", "-R", f"{home.stat().st_uid}:0", home], root=True, limit=600)
    os.sync()


def _clone(sessions: Sessions, ada: Session, snapshot: str, number: int) -> None:
    name = f"ada{number}"
    new = replace(ada, name=name, uid=UID + number, home=sessions.homes.home_of(name))
    sessions.homes.draft_clone(ada, snapshot, new)
    sessions.homes.finish_clone(new, ada.uid)


def _back(sessions: Sessions, ada: Session, snapshot: str) -> float:
    """Seconds of the steps of a rollback while the session is away: the home as it is becomes a snapshot, then it goes
    back. As in a rollback, a first snapshot is taken before the stop, and what was replaced goes afterwards. The kernel
    remembers all files, as those of a session in use.
    """
    command.run(["find", ada.home, "-type", "f", "-newermt", "now"], root=True, limit=600)
    sessions.homes.copy(ada, "safety")
    (folder_of(ada.home) / "folder-0" / "saved").write_bytes(bytes(100_000))

    def away() -> None:
        sessions.homes.delta(ada, "safety")
        sessions.homes.restore(ada, snapshot)

    taken = seconds_of(away)
    sessions.homes.release(ada.name)
    return taken


def _slow(seconds: list[float]) -> float:
    return quantiles(seconds, n=20)[-1]


def _row(name: str, seconds: float, goal: float, rsync: float, same: bool) -> Row:
    peers = {"rsync -a": rsync}
    return Row(name, "s", f"≤ {goal:g} s", seconds, same and seconds <= goal, peers)
