"""Verdicts on programs that wait for their person, and on what looks like them and works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.sessions.activity.evidence import Process, Verdict
from tests.support.activity.looks import in_terminal, process, seen


@pytest.mark.parametrize(
    "one",
    [
        in_terminal(9, "nano", "x"),
        in_terminal(9, "python3"),
        in_terminal(9, "python3", waits="child"),
        in_terminal(9, "python3", waits="line"),
        in_terminal(9, "bash", waits="line"),
        in_terminal(9, "python3", threads=("lock", "any")),
        in_terminal(9, "ipython3", waits="key", threads=("lock", "any")),
        in_terminal(9, "python3", waits="timed"),
        in_terminal(9, "gdb", "-q", "./a.out", waits="key", threads=("lock",)),
        in_terminal(9, "python3", "train.py", waits="line", threads=("lock", "lock")),
        in_terminal(9, "python3", "train.py", waits="terminal"),
        in_terminal(9, "bash", "install.sh", waits="line"),
        in_terminal(9, "cat", waits="line"),
        in_terminal(9, "/usr/bin/python3", "/usr/bin/ipython"),
        in_terminal(9, "python3", "-m", "pdb", "work.py"),
        in_terminal(9, "python3", "-i", "work.py"),
        in_terminal(9, "tail", "-n", "3", "-F", "log", waits="other"),
        in_terminal(9, "tail", "-f", "log", waits="other", foregrounds=(8,)),
        in_terminal(9, "sleep", "infinity", waits="sleep", foregrounds=(8,)),
        process(9, "sshd: dev@notty"),
        process(9, "sshd: dev"),
        in_terminal(9, "less", "x", state="T", foregrounds=(8,)),
        in_terminal(9, "tmux", "attach", name="tmux: client"),
    ],
    ids=str,
)
def test_what_a_person_has_open_is_state(one: Process) -> None:
    assert seen(one).verdict is Verdict.state


@pytest.mark.parametrize(
    "one",
    [
        in_terminal(9, "bash", waits="other"),
        in_terminal(9, "-bash", waits="sleep", foregrounds=(0,)),
        in_terminal(9, "bash", waits=""),
        in_terminal(9, "python3", waits="sleep"),
        in_terminal(9, "python3", waits="other"),
        in_terminal(9, "python3", threads=("sleep",)),
        in_terminal(9, "bash", waits="timed"),
        in_terminal(9, "python3", "train.py", waits="line", threads=("sleep",)),
        in_terminal(9, "python3", "train.py", waits="line", threads=("any",)),
        in_terminal(9, "python3", "train.py", waits="line", threads=("",)),
        in_terminal(9, "python3", "train.py", waits="timed"),
        in_terminal(9, "python3", "train.py", waits="line", foregrounds=(8,)),
        in_terminal(9, "ssh", "elsewhere", waits="key"),
        in_terminal(9, "python3", "-m", "pdb", "work.py", waits="other"),
        in_terminal(9, "R", "--no-echo", "--no-restore", "--file=work.R", waits="other"),
        in_terminal(9, "tail", "log", waits="other"),
        in_terminal(9, "sleep", "900", waits="sleep"),
        process(9, "sleep", "infinity"),
    ],
    ids=lambda one: f"{one}, waits for {one.waits or 'nothing'}",
)
def test_what_works_looks_like_what_a_person_has_open_and_is_none(one: Process) -> None:
    activity = seen(one)
    assert activity.verdict is Verdict.busy
    (said,) = activity.reasons
    assert said.partition(": ")[0] in ("runs", "executes")


def test_a_shell_that_waits_for_what_it_has_started_is_judged_by_that() -> None:
    shell = in_terminal(9, "bash", waits="child", foregrounds=(10,))
    assert seen(shell, in_terminal(10, "make", parent=9, waits="child")).reasons == ("runs: make, pid 10",)
    assert seen(shell, in_terminal(10, "nano", "x", parent=9)).verdict is Verdict.state
    loop = in_terminal(11, "bash", parent=9, waits="other", foregrounds=(9,))  # `while read job <~/queue; do …; done &`
    assert seen(replace(shell, waits="terminal", foregrounds=(9,)), loop).reasons == (f"executes: {loop}",)


def test_a_program_that_waits_for_its_pager_or_editor_is_state_until_that_works() -> None:
    log = in_terminal(9, "git", "log", waits="other")
    pager = in_terminal(10, "less", parent=9, group=9, foregrounds=(9,))
    assert seen(log, pager).verdict is Verdict.state
    shell = in_terminal(11, "/bin/sh", "-c", "less -+F", parent=9, group=9, foregrounds=(9,), waits="child")
    below = seen(log, shell, replace(pager, parent=11))
    assert below.verdict is Verdict.state and any("waits for less: git log" in text for text in below.reasons)
    assert seen(replace(log, cpu=0.9), pager).verdict is Verdict.busy
    assert seen(log, pager, in_terminal(11, "sleep", "900", parent=10, foregrounds=(9,))).verdict is Verdict.busy
    assert seen(log, pager, in_terminal(11, "make", parent=9, foregrounds=(9,))).verdict is Verdict.busy


def test_a_program_that_waits_for_another_which_asks_something_is_state_if_it_does_nothing_else() -> None:
    runner = in_terminal(9, "poetry", "run", "python", "a.py", waits="child")
    asks = in_terminal(10, "python", "a.py", parent=9, group=9, foregrounds=(9,), waits="line")
    assert seen(runner, asks).verdict is Verdict.state
    assert seen(replace(runner, waits="any"), asks).verdict is Verdict.busy
    assert seen(runner, replace(asks, waits="sleep")).verdict is Verdict.busy


def test_a_program_under_a_debugger_is_state_while_that_is_at_its_prompt() -> None:
    gdb = in_terminal(9, "gdb", "./a.out", waits="key")
    stopped = in_terminal(10, "./a.out", parent=9, state="t", foregrounds=(9,))
    assert seen(gdb, stopped).verdict is Verdict.state
    assert seen(replace(gdb, foregrounds=(10,)), stopped).verdict is Verdict.busy
    assert seen(in_terminal(9, "strace", "./a.out", waits="child"), stopped).verdict is Verdict.busy
