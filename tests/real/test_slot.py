"""The script of a slot, in a namespace of its own as in a Pod: a stopped program has ended, and can begin anew."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import PATIENCE, wait_until

SCRIPT = Path(__file__).parents[2] / "flows" / "sessions" / "kubernetes" / "slot.sh"
# Nobody's: `kill -1` of this user reaches nothing else, also outside of the namespace.
UID = "399123"
USER = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
# Ends a bit after SIGTERM, as an IDE does.
ENDS_IN_TIME = 'trap "sleep 0.02; exit 0" TERM; while :; do sleep 0.05; done'
# All that process 1 of a slot calls at any time.
_PROGRAMS = ("ln", "mkdir", "mkfifo", "mv", "rm", "touch")
REFUSED = 75
TOLD_TO_END = 128 + signal.SIGTERM
NEVER_ENDS = 'trap "" TERM; while :; do sleep 0.05; done'


@dataclass(frozen=True)
class Pod:
    """A slot that runs in namespaces of its own."""

    first: int
    programs: Path

    @property
    def files(self) -> Path:
        """The folder of the slot."""
        return Path("/proc") / str(self.first) / "root/run/refit/slots/a"

    def slot(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Call the script beside it, as an exec does."""
        call = self.call(*words)
        return subprocess.run(call, check=False, text=True, input=stdin, capture_output=True, timeout=PATIENCE)

    def call(self, *words: str) -> list[str]:
        """The program that calls the script beside it."""
        enter = ("nsenter", f"--target={self.first}", "--pid", "--mount", "env", "REFIT_SLOT=a")
        return [*enter, *USER, "sh", "/run/slot", *words]

    def begin(self, program: str) -> None:
        """Let a program begin as generation 1."""
        done = self.next(program)
        assert done.returncode == 0, done.stderr

    def next(
        self, program: str, generation: int = 1, number: int = 1, verb: str = "start", known: str = "ask"
    ) -> subprocess.CompletedProcess[str]:
        """Let a program begin, for the holder of the lease with this number."""
        words = (verb, str(generation), str(number), known)
        return self.slot("run-next", str(len(program)), *words, stdin=program)

    def programs_of(self, argv: str) -> list[int]:
        """The processes in it with these arguments."""
        result = list[int]()
        for each in psutil.Process(self.first).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile, or nobody has waited for it
                result += [each.pid] if " ".join(each.cmdline()) == argv else []
        return result

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
    return (pod.files / "gate").is_fifo()


@pytest.mark.parametrize(
    ("program", "times"), [(ENDS_IN_TIME, 12), (NEVER_ENDS, 4)], ids=["ends in time", "has to be killed"]
)
def test_a_slot_stops_and_begins_as_often_as_one_likes(pod: Pod, program: str, times: int) -> None:
    pod.begin(program)
    for _ in range(times):
        pod.end()
        pod.begin(program)
    pod.end()


def test_the_end_hangs_on_no_program_that_the_stop_could_kill(pod: Pod) -> None:
    pod.begin(ENDS_IN_TIME)
    slow = pod.programs / "slow"
    slow.touch()  # from now on each program of process 1 takes longer than the stop waits
    pod.end()
    slow.unlink()
    pod.begin(ENDS_IN_TIME)
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


def test_a_refit_that_was_taken_for_dead_changes_nothing_for_the_one_that_came_after_it(pod: Pod) -> None:
    assert pod.next("exec sleep 600", 2, number=8).returncode == 0
    for words in (("stop", "1", "7"), ("open", "2", "7")):
        assert pod.slot(*words).returncode == REFUSED
    assert pod.next("echo late >/run/refit/home/late", 1, number=7).returncode == REFUSED
    assert "sleep 600" in (pod.files / "program").read_text()
    assert pod.slot("state").stdout == "2\n"
    assert pod.slot("stop", "1", "8").returncode == 0
    assert not (pod.files / "number").exists() and [each.name for each in (pod.files / "leases").glob("8")] == ["8"]


def test_what_was_on_its_way_to_begin_when_a_later_refit_came_does_not(pod: Pod) -> None:
    """Its number was looked at before the later one came; only then it reached process 1."""
    (pod.files / "program.7.1").write_text("exec sleep 600")
    (pod.files / "program.7.1").chmod(0o644)
    assert pod.slot("stop", "1", "8").returncode == 0
    (pod.files / "stopping").write_text("")
    (pod.files / "gate").write_text("1 now 7 /run/refit/slots/a/program.7.1\n")
    wait_until(lambda: not (pod.files / "program.7.1").exists())
    assert pod.slot("state").stdout == "" and pod.next("exec sleep 600", 2, number=8).returncode == 0
    assert pod.slot("state").stdout == "2\n"


def test_what_was_on_its_way_to_begin_when_it_was_stopped_does_not(pod: Pod) -> None:
    (pod.files / "program.1.1").write_text("exec sleep 600")
    assert pod.slot("stop", "1", "1").returncode == 0
    (pod.files / "gate").write_text("1 now 1 /run/refit/slots/a/program.1.1\n")
    wait_until(lambda: not (pod.files / "program.1.1").exists())
    assert pod.slot("state").stdout == ""
    pod.begin("exec sleep 600")


def test_half_of_a_program_does_not_begin(pod: Pod) -> None:
    """Its connection breaks while it is sent."""
    half = "touch /run/refit/home/half; exec sleep 600 # à peu près"
    size = len(half.encode())
    broken = pod.slot("run-next", str(size + 1), "start", "1", "1", "sure", stdin=half)
    assert broken.returncode == REFUSED and "as a whole" in broken.stderr
    assert pod.slot("state").stdout == "" and not [*pod.files.glob("program*")]
    pod.begin("exec sleep 600")
    assert not (pod.files / "../../home/half").exists()
    pod.end()
    whole = pod.slot("run-next", str(size), "start", "1", "1", "sure", stdin=half)
    assert whole.returncode == 0 and pod.slot("state").stdout == "1\n", whole.stderr


def test_a_call_that_hangs_before_it_begins_anything_ends_with_a_stop(pod: Pod) -> None:
    """Its connection was lost: nobody hears of it any more, and the number of its lease is the newest."""
    program = "exec sleep 600"
    call = pod.call("run-next", str(len(program)), "start", "1", "1", "sure")
    with subprocess.Popen(call, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as late:
        wait_until(lambda: bool([*pod.files.glob("program.1.*")]))
        assert pod.slot("stop", "1", "1").returncode == 0
        with suppress(BrokenPipeError):
            late.communicate(program.encode())
    assert late.returncode in (-signal.SIGTERM, -signal.SIGKILL)
    assert pod.slot("state").stdout == "" and not pod.programs_of("sleep 600")
    pod.begin(program)


@pytest.mark.parametrize("program", ["", ENDS_IN_TIME], ids=["empty", "in use"])
def test_a_container_that_is_told_to_end_says_so_by_its_exit_code(pod: Pod, program: str) -> None:
    around = psutil.Process(pod.first).parent()
    assert around
    if program:
        pod.begin(program)
    psutil.Process(pod.first).terminate()
    assert around.wait(PATIENCE) == TOLD_TO_END


def test_a_program_that_ends_by_itself_gives_the_container_its_own(pod: Pod) -> None:
    around = psutil.Process(pod.first).parent()
    assert around
    pod.begin("sleep 0.1; exit 0")
    assert around.wait(PATIENCE) == 0


def test_a_container_that_has_just_replaced_one_that_ended_says_so_before_anything_begins(pod: Pod) -> None:
    (pod.files / "restarted").touch()  # as its process 1 writes
    asked = pod.next("exec sleep 600")
    born = asked.stdout.strip()
    assert born.isdigit() and pod.slot("state").stdout == ""
    assert pod.next("exec sleep 600", known=str(int(born) - 1)).stdout.strip() == born
    assert pod.next("exec sleep 600", known=born).stdout == "" and pod.slot("state").stdout == "1\n"
    pod.end()
    assert pod.next("exec sleep 600", known="sure").stdout == "" and pod.slot("state").stdout == "1\n"


def test_nothing_begins_after_a_later_refit_has_stopped_it_whenever_that_comes(pod: Pod) -> None:
    lot = random.Random(20)
    with ThreadPoolExecutor(1) as dying:
        for number in range(1, 40, 2):
            asked = dying.submit(pod.next, "exec sleep 600", 1, number)
            time.sleep(lot.uniform(0.0, 0.15))  # by lot: any moment of the call may be the one
            assert pod.slot("stop", "1", str(number + 1)).returncode == 0
            assert asked.result().returncode in (0, REFUSED, -signal.SIGTERM, -signal.SIGKILL)
            assert pod.slot("state").stdout == "" and not pod.programs_of("sleep 600")
