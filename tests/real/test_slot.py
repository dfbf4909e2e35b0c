"""The script of a slot, in a namespace of its own as in a Pod: a stopped program has ended, and can begin anew."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "flows" / "sessions" / "kubernetes" / "slot.sh"
# Nobody's: `kill -1` of this user reaches nothing else, also outside of the namespace.
UID = "399123"
USER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
# Ends a bit after SIGTERM, as an IDE does.
ENDS_IN_TIME = 'trap "sleep 0.02; exit 0" TERM; while :; do sleep 0.05; done'
# All that process 1 of a slot calls at any time.
_PROGRAMS = ("ln", "mkdir", "mkfifo", "mv", "rm", "touch")
NEVER_ENDS = 'trap "" TERM; while :; do sleep 0.05; done'


@dataclass(frozen=True)
class Pod:
    """A slot that runs in namespaces of its own."""

    first: int
    programs: Path

    def slot(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Call the script beside it, as an exec does."""
        enter = ("nsenter", f"--target={self.first}", "--pid", "--mount", "env", "REFIT_SLOT=a")
        call = [*enter, *USER, "sh", "/run/slot", *words]
        return subprocess.run(call, check=False, text=True, input=stdin, capture_output=True, timeout=60)

    def begin(self, program: str) -> None:
        """Write a program, and let it begin as generation 1."""
        self.slot("write", str(len(program)), stdin=program)
        self.again()

    def again(self) -> None:
        """Let it begin once more."""
        done = self.slot("start", "1", "1")
        assert done.returncode == 0, done.stderr

    def end(self) -> None:
        """Stop it within a second."""
        done = self.slot("stop", "1", "1")
        assert done.returncode == 0, done.stderr
        assert self.slot("state").stdout == ""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in _PROGRAMS:
        (programs / name).write_text(f'#!/bin/sh\n[ ! -e "${{0%/*}}/slow" ] || /bin/sleep 5\nexec /bin/{name} "$@"\n')
        (programs / name).chmod(0o755)
    setup = (
        "for at in /home /dev/shm; do mount -t tmpfs -o mode=1777 none $at; done; "
        f"cp {SCRIPT} /dev/shm/slot; mkdir /dev/shm/programs; mount --bind {programs} /dev/shm/programs; "
        "mount -t tmpfs -o mode=1777 none /run; mv /dev/shm/slot /run/slot; chmod 644 /run/slot; "
        "install -d -m 1777 /run/refit /run/refit/home; "
        f"export REFIT_SLOT=a PATH=/dev/shm/programs:$PATH; exec {' '.join(USER)} sh /run/slot run"
    )
    spaces = ("unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child")
    process = subprocess.Popen([*spaces, "sh", "-c", setup])
    try:
        wait_until(lambda: bool(psutil.Process(process.pid).children()))
        pod = Pod(psutil.Process(process.pid).children()[0].pid, programs)
        wait_until(lambda: pod.slot("state").returncode == 0 and _has_a_gate(pod))
        yield pod
    finally:
        process.kill()
        process.wait()


def _has_a_gate(pod: Pod) -> bool:
    return (Path("/proc") / str(pod.first) / "root/run/refit/slots/a/gate").is_fifo()


@pytest.mark.parametrize(
    ("program", "times"), [(ENDS_IN_TIME, 12), (NEVER_ENDS, 4)], ids=["ends in time", "has to be killed"]
)
def test_a_slot_stops_and_begins_as_often_as_one_likes(pod: Pod, program: str, times: int) -> None:
    pod.begin(program)
    for _ in range(times):
        pod.end()
        pod.again()
    pod.end()


def test_the_end_hangs_on_no_program_that_the_stop_could_kill(pod: Pod) -> None:
    pod.begin(ENDS_IN_TIME)
    slow = pod.programs / "slow"
    slow.touch()  # from now on each program of process 1 takes longer than the stop waits
    pod.end()
    slow.unlink()
    pod.again()
    pod.end()


def test_names_with_blanks_and_brackets_hide_no_process_and_invent_none(pod: Pod) -> None:
    program = 'cp /bin/sleep "/home/my (old) Z"; {}exec "/home/my (old) Z" 600'

    def childless() -> bool:
        return pod.slot("childless").returncode == 0

    pod.begin(program.format(""))
    wait_until(childless)
    pod.end()
    pod.begin(program.format('"/home/my (old) Z" 600 & '))
    wait_until(lambda: not childless())
    pod.end()
