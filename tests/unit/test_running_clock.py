"""The clock by which tests measure what a program promises in seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from time import monotonic

import psutil

from tests.support.machine import ROOT
from tests.support.waiting import running_seconds, wait_until

MEASURES = """
import sys
from time import monotonic
from tests.support.waiting import running_seconds, wait_until
began, first = monotonic(), running_seconds()
print("measures", flush=True)
sys.stdin.readline()
print(monotonic() - began - (running_seconds() - first))
"""


def test_it_goes_on_and_is_never_fast() -> None:
    first, began = running_seconds(), monotonic()
    wait_until(lambda: running_seconds() - first >= 0.5)
    assert monotonic() - began >= 0.4


def test_it_stands_still_while_nothing_runs() -> None:
    call = [sys.executable, "-c", MEASURES]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        assert program.stdin and program.stdout and program.stdout.readline() == "measures\n"
        os.kill(program.pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(program.pid).status() == psutil.STATUS_STOPPED)
        began = monotonic()
        wait_until(lambda: monotonic() - began > 1)
        os.kill(program.pid, signal.SIGCONT)
        program.stdin.write("\n")
        program.stdin.flush()
        assert float(program.stdout.read()) > 0.9
