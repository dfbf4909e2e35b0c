"""No process outlives a command that needs Prefect and finds none, nor a run of tests, however either ends."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import cluster
from tests.support.guard import GUARDED, _has
from tests.support.machine import ROOT
from tests.support.waiting import some_long, wait_until

pytestmark = pytest.mark.slow

REFIT = Path(sys.executable).parent / "refit"
# The variables of a shell, without those that tests set.
SHELL = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "REFIT"))}
FLOW = "from flows.prune_images import prune_images; prune_images(dry_run=True)"


def left(mark: str) -> list[int]:
    """The processes with this among their variables."""
    results = []
    for folder in Path("/proc").iterdir():
        try:
            variables = (folder / "environ").read_bytes().split(b"\0") if folder.name.isdecimal() else []
        except OSError:
            continue
        if mark.encode() in variables:
            results.append(int(folder.name))
    return results


COMMANDS = [("build",), ("lock",), ("prune",), ("nightly",), ("serve",), ("queue", "list")]


@pytest.mark.parametrize("words", some_long(COMMANDS, short=(("build",), ("queue", "list"))))
def test_a_command_without_a_server_says_refit_up_and_leaves_no_process(tmp_path: Path, words: tuple[str, ...]) -> None:
    environment = {**SHELL, "REFIT_HOME": str(tmp_path), "REFIT_PREFECT_PORT": "9", "REFIT_REGISTRY_PORT": "9"}
    done = subprocess.run([REFIT, *words], env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1 and "run `refit up`" in done.stderr and "Traceback" not in done.stderr
    wait_until(lambda: not left(f"REFIT_HOME={tmp_path}"))


def test_a_flow_that_finds_no_server_starts_none(tmp_path: Path) -> None:
    environment = {**SHELL, "REFIT_HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path)}
    argv = [sys.executable, "-c", FLOW]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode and "No Prefect API URL provided" in done.stderr
    wait_until(lambda: not left(f"REFIT_HOME={tmp_path}"))
    assert not list(tmp_path.glob("prefect.db*"))


@pytest.mark.parametrize("seconds", some_long([1, 3, 6], short=1))
def test_a_build_that_is_killed_leaves_no_process(tmp_path: Path, seconds: int) -> None:
    environment = {**SHELL, "REFIT_HOME": str(tmp_path), "REFIT_PREFECT_PORT": "9", "REFIT_REGISTRY_PORT": "9"}
    argv = [REFIT, "build"]
    with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL, start_new_session=True, cwd=ROOT) as build:
        with suppress(subprocess.TimeoutExpired):
            build.wait(seconds)
        build.kill()
    wait_until(lambda: not left(f"REFIT_HOME={tmp_path}"))


def test_what_a_run_of_tests_started_ends_with_it_when_it_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    home.mkdir()
    code = (
        "import os, subprocess, sys; from tests.support.guard import guard; "
        f"os.environ['PREFECT_HOME'] = {str(home)!r}; guard({str(home)!r}); "
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as run:
        assert run.stdout
        started = int(run.stdout.readline())
        wait_until(lambda: _has(started, str(home)))  # a process that is just being made has no variables to be read
        run.kill()
        run.wait()
        wait_until(lambda: not _has(started, str(home)) and not home.exists())


@pytest.mark.parametrize("was_up", [True, False], ids=["was up", "of this run"])
def test_a_run_of_tests_ends_a_cluster_that_it_began_and_no_part_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_up: bool
) -> None:
    monkeypatch.setattr(cluster, "FOLDER", tmp_path)
    assert GUARDED in cluster.variables()  # of the one that is begun now
    (tmp_path / "run").mkdir()
    etcd = subprocess.Popen(["sleep", "600"], env=SHELL if was_up else None)
    try:
        (tmp_path / "run" / "etcd.pid").write_text(f"{etcd.pid}\n")
        assert (GUARDED in cluster.variables()) is not was_up
        assert cluster.variables()["PATH"] == os.environ["PATH"]
    finally:
        etcd.kill()
        etcd.wait()
