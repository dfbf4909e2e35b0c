"""The script that looks, run here: verdicts are made of its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from flows.core.programs import spawn
from flows.sessions.activity import inspect_processes
from flows.sessions.activity.evidence import Look
from flows.sessions.activity.verdict import PROBE, RESTLESS
from tests.support.terminal import Terminal
from tests.support.waiting import serving, wait_until

CALL = (sys.executable, *PROBE[1:])
ASKED = {"seconds": 0.05, "port": None, "protocol": "none", "heartbeat": "beat"}


def looked(home: Path, **more: object) -> Look:
    environment = {"HOME": str(home), "REFIT_TOKEN_FILE": str(home / "token")}
    with spawn.dialogue(["env", *(f"{name}={value}" for name, value in environment.items()), *CALL]) as ask:
        assert ask(f"exec({Path(inspect_processes.__file__).read_text()!a})") == "ready\n"
        return TypeAdapter(Look).validate_json(ask(json.dumps({**ASKED, **more})))


@pytest.mark.slow
def test_a_program_is_seen_with_its_terminal_and_its_input(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "input(); input()", str(tmp_path))
    terminal = Terminal(argv)
    try:
        terminal.type("x\n")
        terminal.wait_for("x")
        seen = looked(tmp_path)
    finally:
        terminal.close()
    (ours,) = [process for process in seen.processes if process.argv == argv]
    assert ours.group in ours.foregrounds and ours.started <= seen.at
    assert ours.stdin == ours.terminal and abs(seen.at - seen.terminals[ours.terminal]) < 30
    assert not seen.problems and not seen.gpu and seen.network >= 0


@pytest.mark.slow
def test_what_hides_or_doesnt_answer_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    seen = looked(tmp_path, protocol="jupyter", port=1)
    assert len(seen.problems) == 1 and seen.problems[0].startswith("Jupyter: ConnectionRefusedError")


class Idle(BaseHTTPRequestHandler):
    """A Jupyter server without kernels."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_a_text_that_a_page_of_jupyterlab_has_open_was_saved_when_its_file_was(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    workspaces = tmp_path / ".jupyter/lab/workspaces"
    workspaces.mkdir(parents=True)
    for name, saved in (("notes.txt", 1000), ("old.txt", 500), ("nobody's.txt", 2000)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (saved, saved))
    with serving(Idle) as port:
        assert looked(tmp_path, protocol="jupyter", port=port).saved is None
        for name in ("notes.txt", "old.txt", "gone.txt"):
            widget = {f"editor:{name}": {"data": {"path": name, "factory": "Editor"}}, "path": None, "more": [1]}
            (workspaces / f"{name}.jupyterlab-workspace").write_text(json.dumps({"data": widget}))
        (workspaces / "torn.jupyterlab-workspace").write_text('{"data": {"edi')
        seen = looked(tmp_path, protocol="jupyter", port=port)
    assert seen.saved == 1000 and not seen.problems


@pytest.mark.slow
def test_a_heartbeat_is_when_its_file_was_touched(tmp_path: Path) -> None:
    assert looked(tmp_path).heartbeat is None
    (tmp_path / "beat").touch()
    seen = looked(tmp_path)
    assert seen.heartbeat is not None and abs(seen.at - seen.heartbeat) < 30


@pytest.mark.slow
def test_a_hold_is_what_its_owner_wrote_and_when(tmp_path: Path) -> None:
    assert looked(tmp_path).hold is None
    file = tmp_path / ".config" / "refit" / "hold"
    file.parent.mkdir(parents=True)
    file.write_text("8h training\nand more\n")
    seen = looked(tmp_path)
    assert seen.hold is not None and seen.hold[1] == "8h training" and abs(seen.at - seen.hold[0]) < 30


@pytest.mark.parametrize(("told", "used"), [("7\n", 0.07), ("0\n93\n", 0.93), ("", 0.0)])
def test_of_several_gpus_the_busiest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, used: float
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{told}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert inspect_processes._gpu() == used


def test_a_gpu_that_nobody_can_be_asked_about_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="nvidia-smi"):
        inspect_processes._gpu()


BURN = "import threading\nthreading.Timer(900, print).start()\nwhile True: pass"
REST = "import time\nwhile True: time.sleep(0.5)"


@contextmanager
def on_one_core(*calls: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run programs that share a core, as those of a machine that is too full share all of them."""
    core = str(max(os.sched_getaffinity(0)))
    programs = [subprocess.Popen(["taskset", "--cpu-list", core, *call]) for call in calls]
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.wait()


@pytest.mark.slow
def test_a_thread_that_computes_never_rests_however_many_others_do(tmp_path: Path) -> None:
    """Beside seven others on its core, as for a moment on a machine that is too full."""
    burn, rest = [sys.executable, "-c", BURN], [sys.executable, "-c", REST]
    with on_one_core(rest, *[burn] * 8) as (resting, *others):

        def told_apart() -> bool:  # not by a look during which the whole machine stood still
            seen = {process.pid: process.restless for process in looked(tmp_path, seconds=1.0).processes}
            return min(seen[each.pid] for each in others) >= RESTLESS > seen[resting.pid]

        wait_until(told_apart)


@pytest.mark.slow
def test_a_wait_for_a_core_that_has_not_ended_counts_as_well(tmp_path: Path) -> None:
    """A thread that gets a hundredth of a core is mostly seen while it waits, which Linux adds when it has waited."""
    burn = [sys.executable, "-c", BURN]
    with on_one_core(["nice", "-n", "12", *burn], *[burn] * 4) as (starved, *_):
        looks = [looked(tmp_path, seconds=1.0) for _ in range(2)]
    seen = [process for look in looks for process in look.processes if process.pid == starved.pid]
    assert len(seen) == len(looks)
    assert min(process.restless for process in seen) >= RESTLESS
