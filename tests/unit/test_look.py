"""The script that looks, run here: what it prints is what verdicts are made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from flows.sessions.watching import look
from flows.sessions.watching.activity import Look
from tests.terminal import Terminal

ASKED = {"seconds": 0.05, "port": None, "protocol": "none", "heartbeat": "beat"}


def looked(home: Path, **more: object) -> Look:
    call = [sys.executable, "-I", look.__file__, json.dumps({**ASKED, **more})]
    environment = {"HOME": str(home), "REFIT_TOKEN_FILE": str(home / "token")}
    told = subprocess.run(call, capture_output=True, text=True, check=True, env=environment).stdout
    return TypeAdapter(Look).validate_json(told)


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


def test_what_hides_or_doesnt_answer_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    seen = looked(tmp_path, protocol="jupyter", port=1)
    assert len(seen.problems) == 1 and seen.problems[0].startswith("Jupyter: ConnectionRefusedError")


def test_a_heartbeat_is_when_its_file_was_touched(tmp_path: Path) -> None:
    assert looked(tmp_path).heartbeat is None
    (tmp_path / "beat").touch()
    seen = looked(tmp_path)
    assert seen.heartbeat is not None and abs(seen.at - seen.heartbeat) < 30


@pytest.mark.parametrize(("told", "used"), [("7\n", 0.07), ("0\n93\n", 0.93), ("", 0.0)])
def test_of_several_gpus_the_busiest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, used: float
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{told}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look._gpu() == used


def test_a_gpu_that_nobody_can_be_asked_about_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        look._gpu()
