import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from multiprocessing import Process, get_context
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.core.programs import command, process_records, program_output, spawn
from flows.core.programs.command import ProgramFailed, ProgramMissing, run
from flows.core.programs.process_records import ProcessId
from tests.support.processes import is_alive
from tests.support.terminal import CTRL_C, Terminal
from tests.support.waiting import PATIENCE


def eventually(condition, seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_output_is_returned_and_logged_while_it_comes(tmp_path: Path) -> None:
    lines: list[str] = []
    with command.logged(tmp_path / "logs" / "run.log") as log:
        done = run(["sh", "-c", "echo one; echo two >&2; echo three"], on_line=lines.append)
    assert (done.stdout, done.stderr) == ("one\nthree\n", "two\n")
    assert sorted(lines) == ["one", "three", "two"]
    assert log.read_text().startswith("+ sh -c ")
    assert {"one", "two", "three"} <= set(log.read_text().splitlines())


def test_input_and_environment_are_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "x")
    assert run(["cat"], stdin="hello").stdout == "hello"
    assert run(["cat"]).stdout == ""
    environment = run(["env"], env={"MINE": "1"}).stdout
    assert "MINE=1" in environment and "LANG=C.UTF-8" in environment
    assert "SECRET_OF_THE_CALLER" not in environment


def test_failure_tells_code_last_words_and_log(tmp_path: Path) -> None:
    with command.logged(tmp_path / "run.log"), pytest.raises(ProgramFailed) as failure:
        run(["sh", "-c", "echo no such thing >&2; exit 3"])
    assert "exit code 3" in failure.value.what
    assert "no such thing" in failure.value.why
    assert str(tmp_path / "run.log") in failure.value.hint
    assert run(["sh", "-c", "exit 3"], accepted=(0, 3)).exit_code == 3


def test_a_program_ended_by_a_signal_is_a_failure() -> None:
    with pytest.raises(ProgramFailed, match="signal 9"):
        run(["sh", "-c", "kill -9 $$"])


def test_a_program_is_asked_and_answers_line_by_line(tmp_path: Path) -> None:
    script = "echo noise >&2; while read line; do echo got $line; done; echo end >end"
    with spawn.dialogue(["sh", "-c", f"cd {tmp_path}; {script}"]) as ask:
        assert (ask("one"), ask("two")) == ("got one\n", "got two\n")
    assert eventually((tmp_path / "end").exists)


@pytest.mark.parametrize(
    ("script", "limit", "what"),
    [
        ("read line; exit 3", 60, "exit code 3"),
        ("read line", 60, "without an answer"),
        ("exit 0", 60, "without an answer"),
        ("sleep 60", 0.1, "longer than 0.1 s"),
    ],
)
def test_what_ends_instead_of_answering_says_why_each_time(script: str, limit: float, what: str) -> None:
    with spawn.dialogue(["sh", "-c", script], limit=limit) as ask:
        for _ in range(2):
            with pytest.raises(ProgramFailed, match=what):
                ask("well?")


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ProgramMissing, match="no-such-program"):
        run(["no-such-program"])


def test_secrets_reach_neither_log_nor_error(tmp_path: Path) -> None:
    program_output.protect("s3cret-value")
    with command.logged(tmp_path / "run.log") as log, pytest.raises(ProgramFailed) as failure:
        run(["sh", "-c", "echo s3cret-value; exit 1"])
    assert "s3cret-value" not in str(failure.value) + log.read_text()
    assert "***" in log.read_text()


@pytest.mark.slow
def test_time_limit_ends_the_whole_tree(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()  # whoever is ended early has said nothing
    script = f"sh -c 'trap \"\" TERM; echo $$ >> {pids}; sleep 300' & echo $$ >> {pids}; sleep 300"
    with pytest.raises(ProgramFailed, match="took longer than 1 s"):
        run(["sh", "-c", script], limit=1)
    assert eventually(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split()))


def test_an_interrupt_ends_the_whole_tree(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def interrupt() -> None:
        eventually(lambda: pids.exists() and pids.read_text().endswith("\n"))
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(["sh", "-c", f"echo $$ > {pids}; sleep 300"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert eventually(lambda: not psutil.pid_exists(int(pids.read_text())))


def test_an_interrupt_right_after_the_start_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    start = command._running

    @contextmanager
    def interrupted(*arguments: Any) -> Iterator[Any]:
        begun.append(start(*arguments).__enter__().pid)
        raise KeyboardInterrupt  # before the caller has heard which process it is
        yield

    monkeypatch.setattr(command, "_running", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sleep", "300"])
    assert eventually(lambda: not psutil.pid_exists(*begun))


def test_a_note_that_goes_while_notes_are_read_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "4711").symlink_to(tmp_path / "gone")  # listed, and not there any more when it is read
    assert process_records.noted(tmp_path) == process_records.noted(tmp_path / "none") == ()
    assert process_records.end_recorded(tmp_path) == process_records.end_recorded(tmp_path / "none") == 0


def _run_recorded(folder: Path) -> None:
    with command.recorded(folder):
        run(["sh", "-c", "sleep 300 & sleep 300"])


def test_what_a_killed_run_left_behind_is_found_and_ended(tmp_path: Path) -> None:
    process = Process(target=_run_recorded, args=(tmp_path / "running",))
    process.start()
    # Drafts of notes begin with a dot.
    assert eventually(lambda: list((tmp_path / "running").glob("[0-9]*")) != [])
    [note] = (tmp_path / "running").glob("[0-9]*")
    shell = psutil.Process(int(note.name))
    assert eventually(lambda: len(shell.children()) == 2)
    tree = [shell, *shell.children()]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()

    assert all(p.is_running() for p in tree)
    assert process_records.end_recorded(tmp_path / "running") == 1
    assert eventually(lambda: not any(map(is_alive, tree)))
    assert process_records.end_recorded(tmp_path / "running") == 0


def test_a_program_that_is_about_to_begin_is_ended_when_it_has_and_not_forgotten(tmp_path: Path) -> None:
    folder, me = tmp_path / "running", ProcessId.of(os.getpid())
    folder.mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert me is not None
    draft = folder / f".{me.pid} {me.boot} {me.started}"
    for each in (draft, folder / f".{ended.pid} {me.boot} 1", folder / f".{me.pid} {me.boot} 1", folder / str(me.pid)):
        each.touch()
    assert process_records.end_recorded(folder) == 0
    assert list(folder.iterdir()) == [draft]


@pytest.mark.slow
def test_a_program_that_another_thread_ends_is_a_failure_that_names_the_signal(tmp_path: Path) -> None:
    def began() -> None:
        with command.recorded(tmp_path / "running"), pytest.raises(ProgramFailed, match="ended by signal 15"):
            run(["sleep", "300"])

    with ThreadPoolExecutor() as pool:
        for _ in range(20):
            running = pool.submit(began)
            assert eventually(lambda: process_records.end_recorded(tmp_path / "running") == 1)
            running.result()


def end_all_while_a_program_says_that_all_is_well() -> None:
    up = threading.Event()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(
            run, ["sh", "-c", "trap 'exit 0' TERM; echo up; sleep 60 & wait"], on_line=lambda _: up.set()
        )
        with suppress(KeyboardInterrupt), command.terminating_children():
            assert up.wait(PATIENCE)
            raise KeyboardInterrupt
        with pytest.raises(ProgramFailed, match="ended by signal 15"):
            running.result()


@pytest.mark.slow
def test_what_was_ended_with_all_has_failed_whatever_it_says() -> None:
    # It ends all children of its process; a fork would have what other tests have left in this one.
    process = get_context("spawn").Process(target=end_all_while_a_program_says_that_all_is_well)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_reused_pid_is_not_mistaken_for_the_old_process() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None and me.alive
    assert not ProcessId(me.pid, me.boot, str(int(me.started) - 1)).alive
    assert not ProcessId(me.pid, "another boot", me.started).alive


def test_without_root_a_program_goes_through_sudo_with_names_of_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert command._elevated(["podman", "ps"], {"TOKEN": "value"}) == [
        "sudo", "-n", "--preserve-env=TOKEN", "--", "podman", "ps",
    ]  # fmt: skip


BECOME = [sys.executable, "-c", "import sys; from flows.core.programs import spawn; spawn.exec_replace(sys.argv[1:])"]


def test_a_process_becomes_a_program_with_its_input_outputs_and_exit_code() -> None:
    script = "echo first; read -r line; echo $line; echo wrong >&2; exit 7"
    process = subprocess.Popen(
        [*BECOME, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin and process.stdout
    assert process.stdout.readline() == "first\n"  # before it has its input, so before its end
    assert process.communicate("in\n") == ("in\n", "wrong\n")
    assert process.returncode == 7


@pytest.mark.slow
def test_what_a_process_has_become_has_the_terminal_and_its_ctrl_c() -> None:
    script = "trap 'echo caught; exit 5' INT; test -t 0 && test -t 1 && echo ready; while :; do sleep 0.1; done"
    terminal = Terminal([*BECOME, "sh", "-c", script])
    terminal.wait_for("ready")
    terminal.type(CTRL_C)
    terminal.wait_for("caught")
    assert terminal.exit_code() == 5


def test_what_a_process_has_become_ends_with_its_terminal_also_below_nohup() -> None:
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    terminal = Terminal(
        [sys.executable, "-c", ignoring, *BECOME, "sh", "-c", "echo ready; while :; do sleep 0.1; done"]
    )
    terminal.wait_for("ready")
    terminal.close()
    assert terminal.ended_with == -signal.SIGHUP


def test_a_process_cant_become_a_program_that_is_missing() -> None:
    with pytest.raises(ProgramMissing, match="no-such-program"):
        spawn.exec_replace(["no-such-program"])


def test_a_run_that_is_over_starts_nothing_more_but_what_clears_up(tmp_path: Path) -> None:
    over = threading.Event()
    with command.stopping(over):
        with command.recorded(tmp_path / "processes"):
            run(["true"])
            over.set()
            with pytest.raises(ProgramFailed, match="not started any more"):
                run(["true"])
        run(["true"])


def end_all_while_something_waits_for_its_turn(folder: Path) -> None:
    turn = threading.Event()

    def wait() -> None:
        turn.wait(PATIENCE)
        with command.recorded(folder):
            run(["true"])

    with ThreadPoolExecutor() as pool:
        with suppress(KeyboardInterrupt), command.terminating_children():
            waiting = pool.submit(copy_context().run, wait)
            raise KeyboardInterrupt
        turn.set()
        with pytest.raises(ProgramFailed, match="not started any more"):
            waiting.result()
    with command.recorded(folder):
        run(["true"])


@pytest.mark.slow
def test_what_waits_for_its_turn_when_all_is_ended_is_not_started_any_more(tmp_path: Path) -> None:
    process = get_context("spawn").Process(target=end_all_while_something_waits_for_its_turn, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("script", ["yes", "yes >&2", "cat /dev/zero", "trap '' TERM PIPE; while :; do echo x; done"])
def test_a_program_that_prints_without_end_is_ended_with_all_that_it_started(tmp_path: Path, script: str) -> None:
    pids, before = tmp_path / "pids", psutil.Process().memory_info().rss
    with pytest.raises(command.TooMuchOutput, match="printed more than 1000000 bytes") as failure:
        run(["sh", "-c", f"sh -c 'echo $$ >{pids}; {script}'; true"], limit=PATIENCE, most=1_000_000)
    assert len(failure.value.tail) < 2_000_000
    assert psutil.Process().memory_info().rss - before < 100_000_000
    assert eventually(lambda: not psutil.pid_exists(int(pids.read_text())))


def test_what_may_be_printed_comes_whole_and_lines_of_any_length_come_in_order() -> None:
    script = "import sys; print('é' * 3_000_000); print('end'); print('wrong', file=sys.stderr)"
    done = run([sys.executable, "-c", script], most=6_000_200)
    assert done.stdout == "é" * 3_000_000 + "\nend\n"
    assert done.stderr == "wrong\n"


def test_an_answer_without_end_ends_the_dialogue() -> None:
    with spawn.dialogue(["sh", "-c", "read line; cat /dev/zero"], most=100_000) as ask:
        for _ in range(2):
            with pytest.raises(ProgramFailed, match="printed more than"):
                ask("well?")


def test_what_a_descendant_prints_later_holds_nobody_up() -> None:
    assert run(["sh", "-c", "echo first; (sleep 1000; echo late) &"], limit=PATIENCE).stdout == "first\n"


def test_a_descendant_that_prints_for_ever_holds_nobody_up() -> None:
    done = run(["sh", "-c", "echo first; yes 2>/dev/null &"], limit=PATIENCE)
    assert "first\n" in done.stdout
