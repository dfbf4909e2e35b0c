"""Thousands of simulated moves in which things go wrong at random moments: whether anybody loses anything."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.results import Row
from flows.sessions.history import History
from tests.support.simulated.fleet import fleet
from tests.support.simulated.upsets import trial

MOVES, PART, SEED = 10_000, 250, 20261121
# The database of a simulated fleet needs no disk: none of its processes dies for real.
MEMORY = Path("/dev/shm")


def run() -> list[Row]:
    """10,000 simulated moves that are killed, fail and are interfered with at random: homes, orphans, history."""
    damage, ended = upset(MOVES, os.cpu_count() or 1)
    print(*damage, sep="\n", file=sys.stderr)
    ends = ", ".join(f"{number:,} {state}" for state, number in ended.most_common())
    name = f"{MOVES:,} simulated moves with faults at random moments ({ends}): lost files, orphans, double mounts, gaps"
    return [Row(name, "cases", "0", len(damage), not damage and ended.total() == MOVES)]


def upset(number: int, processes: int) -> tuple[list[str], Counter[str]]:
    """Losses and leftovers of so many moves, in words; and how the moves ended."""
    parts = [range(first, min(first + PART, number)) for first in range(0, number, PART)]
    damage: list[str] = []
    ended: Counter[str] = Counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for one, states in pool.map(_part, parts):
            damage += one
            ended += states
    return damage, ended


def _part(numbers: range) -> tuple[list[str], Counter[str]]:
    logging.disable(logging.CRITICAL)
    damage, ended = [], Counter[str]()
    memory = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(prefix="refit-faults-", dir=memory) as folder, fleet(Path(folder, "home")) as sessions:
        for number in numbers:
            try:
                ended[trial(sessions, number, SEED)] += 1
            except AssertionError as error:
                damage.append(str(error))
        damage += [f"the history is broken at {broken}"] if (broken := History(sessions.database).broken()) else []
    return damage, ended
