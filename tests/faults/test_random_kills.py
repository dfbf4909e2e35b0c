"""Moves that are killed at random moments; `python -m bench kills` does the same with hundreds of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bench.kills import killed_moves, other_mounts, shows
from tests.support.waiting import wait_until

MOVES, SEED = 8, 7


@pytest.mark.long
def test_moves_killed_at_random_moments_leave_nothing_behind() -> None:
    outcome = killed_moves(MOVES, SEED)
    assert outcome.killed >= MOVES
    assert not outcome.problems


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the mounts of others")
def test_a_home_that_two_containers_have_is_seen(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "homes" / "ada", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir(parents=True)

    def holders() -> int:
        return sum(any(shows(mount, str(home), str(elsewhere)) for mount in mounts) for mounts in other_mounts())

    held = ["unshare", "--mount", "sh", "-c", f"mount --bind '{home}' '{elsewhere}' && exec sleep 6000"]
    processes = [subprocess.Popen(held) for _ in range(2)]
    try:
        wait_until(lambda: holders() == 2)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    wait_until(lambda: holders() == 0)
