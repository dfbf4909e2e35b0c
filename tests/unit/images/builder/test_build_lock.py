"""Building and pruning exclude each other, between processes and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.core.database import open_database
from flows.core.leases import LeaseTaken, held
from flows.core.settings import Settings
from flows.images.builder.build_lock import building, pruning

pytestmark = pytest.mark.slow

HOLD = """
import sys
from contextlib import nullcontext
from flows.core.database import open_database
from flows.images.builder import build_lock, workspace
from flows.core.settings import load

settings = load()
database = open_database(settings.database)
with {
    "build": lambda: build_lock.building(database),
    "prune": lambda: build_lock.pruning(database, settings),
    "stage": lambda: workspace.workspace(settings),
}[sys.argv[1]]():
    print("in", flush=True)
    sys.stdin.readline()
print("out", flush=True)
"""


@contextmanager
def process(settings: Settings, what: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that builds or prunes until it is sent a line."""
    environment = {**os.environ, "REFIT_HOME": str(settings.home)}
    argv = [sys.executable, "-c", HOLD, what]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=environment, stdin=pipe, stdout=pipe, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def said(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def end(started: subprocess.Popen[str]) -> None:
    assert started.stdin is not None
    started.stdin.write("\n")
    started.stdin.flush()
    assert said(started) == "out"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def test_many_build_at_once_and_a_prune_waits_for_all(settings: Settings) -> None:
    database = open_database(settings.database)
    with process(settings, "build") as one, process(settings, "build") as other:
        assert (said(one), said(other)) == ("in", "in")
        assert len(held(database, "building ")) == 2
        end(one)
        with pytest.raises(LeaseTaken), pruning(database, settings, wait=0.3):
            pass
        end(other)
        with pruning(database, settings, wait=5):
            pass


def test_nobody_begins_to_build_while_a_prune_runs_or_waits(settings: Settings) -> None:
    database = open_database(settings.database)
    with process(settings, "build") as builder:
        assert said(builder) == "in"
        with process(settings, "prune") as pruner:
            while not held(database, "pruning"):
                assert pruner.poll() is None
            with pytest.raises(LeaseTaken), building(database, wait=0.3):
                pass
            end(builder)
            assert said(pruner) == "in"
            with pytest.raises(LeaseTaken), building(database, wait=0.3):
                pass
            end(pruner)
            with building(database, wait=5):
                pass
        assert held(database, "") == ()


@pytest.mark.parametrize("killed", ["build", "prune"])
def test_whoever_is_killed_holds_nobody_up(settings: Settings, killed: str) -> None:
    database = open_database(settings.database)
    with process(settings, killed) as victim:
        assert said(victim) == "in"
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        with pruning(database, settings, wait=5):
            pass
        with building(database, wait=5):
            pass


def test_a_stage_that_is_built_outside_of_any_run_is_awaited_too(settings: Settings) -> None:
    database = open_database(settings.database)
    with process(settings, "stage") as builder:
        assert said(builder) == "in"
        with process(settings, "prune") as pruner:
            while not held(database, "pruning"):
                assert pruner.poll() is None
            assert list(settings.folder("running").iterdir())
            end(builder)
            assert said(pruner) == "in"
            assert not list(settings.folder("running").iterdir())
            with process(settings, "stage") as late:
                end(pruner)
                assert said(late) == "in"


def test_places_are_used_again(settings: Settings) -> None:
    database = open_database(settings.database)
    for _ in range(3):
        with building(database), building(database):
            assert held(database, "building ") == ("building 0", "building 1")
