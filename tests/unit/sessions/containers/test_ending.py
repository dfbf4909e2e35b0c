"""Whom the end of a container waits for."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from flows.sessions.containers import ending
from flows.sessions.containers.ending import Process, main_program, read_status, started_by, waited_for
from tests.support.waiting import wait_until

SERVER = Process(500, 100, 7, deaf=False)
SSHD = Process(90, 100, 9, deaf=False)  # younger, though its pid is lower: pids begin anew
KERNEL = Process(501, 500, 8, deaf=False)
SHELL = Process(502, 500, 9, deaf=True, terminal=True)
ALL = (SSHD, SERVER, KERNEL, SHELL)


def test_the_main_program_is_the_oldest_child_of_the_first_process() -> None:
    assert main_program(100, ALL) == SERVER.pid
    assert main_program(100, [KERNEL]) == 0


def test_whoever_may_still_save_something_is_waited_for_before_the_main_program_is_told() -> None:
    assert waited_for(SERVER.pid, ALL) == [SSHD.pid, KERNEL.pid]
    assert waited_for(SERVER.pid, [SERVER, SHELL]) == []


@pytest.mark.parametrize(("ignored", "deaf"), [("0000000000004000", True), ("0000000000001000", False)])
def test_who_ignores_sigterm_is_told_by_the_kernel(ignored: str, deaf: bool) -> None:
    seen = read_status(502, {"State": "S (sleeping)", "PPid": "500", "SigIgn": ignored}, 9)
    assert seen == Process(502, 500, 9, deaf)
    assert read_status(502, {"State": "Z (zombie)", "PPid": "500", "SigIgn": ignored}, 9) is None


def test_a_shell_at_a_terminal_is_no_kernel_to_be_ended_first() -> None:
    assert started_by(SERVER.pid, [SSHD, SERVER, SHELL]) == []
    assert started_by(SERVER.pid, ALL) == [KERNEL.pid]


def test_the_kernel_says_who_has_a_terminal() -> None:
    shell, terminal = pty.fork()
    if not shell:
        os.execvp("sleep", ["sleep", "1000"])
    kernel = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        # The child takes its terminal after the fork, which has returned here by then.
        wait_until(lambda: (process := ending._read(Path("/proc", str(shell)), shell)) and process.terminal)
        seen = {pid: ending._read(Path("/proc", str(pid)), pid) for pid in (shell, kernel.pid)}
        assert {pid: process and process.terminal for pid, process in seen.items()} == {shell: True, kernel.pid: False}
    finally:
        kernel.kill()
        kernel.wait()
        os.kill(shell, signal.SIGKILL)
        os.waitpid(shell, 0)
        os.close(terminal)


def test_what_is_in_no_container_is_never_ended() -> None:
    with pytest.raises(OSError, match="is in no container"):
        ending.end(os.getpid(), 0.0)
