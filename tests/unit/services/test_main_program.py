"""The main program of a container waits for its end, and leaves no zombies."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_until

# It has a child that ends by itself, as processes do that have lost their parents.
_PROGRAM = """
import os
from flows.services.main_program import until_told_to_end
child = os.fork()
if not child:
    os.read(0, 1)
    os._exit(0)
os.close(0)
print(child, flush=True)
until_told_to_end()
print("told", flush=True)
"""


def test_it_ends_when_it_is_told_to_and_waits_for_those_that_nobody_waits_for() -> None:
    call = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin and program.stdout
        child = int(program.stdout.readline())
        program.stdin.close()
        wait_until(lambda: not Path(f"/proc/{child}").exists())
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.stdout.read() == "told\n" and program.wait() == 0
