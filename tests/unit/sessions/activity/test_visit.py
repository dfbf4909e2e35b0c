"""One program in a session that answers several questions in turn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.programs.command import CommandTimeout, ProgramFailed
from flows.sessions.activity import hook
from flows.sessions.activity import visit as visit_module
from flows.sessions.activity.probes import ProbeSpec
from flows.sessions.activity.visit import Visit, visiting
from tests.support.pods import SESSION

QUICK = ProbeSpec(seconds=0.0)
PLAIN = replace(SESSION, access=Access())


class Here:
    """This machine in the place of a session; `starts`: whether programs that answer begin."""

    def __init__(self, *, starts: bool = True) -> None:
        self.starts, self.begun, self.executed = starts, 0, list[Sequence[str]]()

    @contextmanager
    def dialogue(self, container: str, argv: Sequence[str], limit: float = 600.0) -> Iterator[Callable[[str], str]]:
        if not self.starts:
            raise RefitError("There is no Python.")
        self.begun += 1
        call = [sys.executable, *argv[1:]]
        with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin and program.stdout

            def ask(line: str) -> str:
                assert program.stdin and program.stdout
                print(line, file=program.stdin, flush=True)
                if not (answer := program.stdout.readline()):
                    raise RefitError("It ended without an answer.")
                return answer

            yield ask
            program.stdin.close()
            assert program.wait() in (0, -signal.SIGKILL), "it ends with its input"

    def execute(
        self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = 1 << 20
    ) -> str:
        self.executed.append(argv)
        return "by itself"


def test_one_program_runs_others_and_looks_again_and_again() -> None:
    here = Here()
    with visiting(here, PLAIN) as visit:
        assert visit.execute("c", ["sh", "-c", 'cat; echo " $1"', "sh", "said"], stdin="read") == "read said\n"
        first, second = visit.look(QUICK), visit.look(QUICK)
    assert first.at < second.at and {process.pid for process in first.processes} & {1}
    assert here.begun == 1 and not here.executed


def test_a_program_that_fails_or_takes_too_long_says_so() -> None:
    with visiting(Here(), PLAIN) as visit:
        with pytest.raises(ProgramFailed, match="exit code 3") as failed:
            visit.execute("c", ["sh", "-c", "echo why >&2; exit 3"])
        assert failed.value.exit_code_of_program == 3 and "why" in str(failed.value)
        with pytest.raises(CommandTimeout, match="longer than"):
            visit.execute("c", ["sleep", "60"], limit=0.1)
        with pytest.raises(ProgramFailed):
            visit.execute("c", ["/there/is/none"])
        assert visit.execute("c", ["echo", "it goes on"]) == "it goes on\n"


def test_those_who_look_are_known_to_none_of_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFIT_LOOK", "nonce")
    with visiting(Here(), PLAIN) as visit:
        assert "nonce" not in visit.execute("c", ["env"])


def test_where_no_program_can_answer_each_question_is_asked_alone() -> None:
    here = Here(starts=False)
    with visiting(here, PLAIN) as visit:
        assert visit.execute("c", ["sh"]) == "by itself" and here.executed == [["sh"]]
        with pytest.raises(RefitError, match="no Python"):
            visit.look(QUICK)


def test_a_session_that_ends_what_answers_has_failed_once_and_is_asked_anew() -> None:
    here = Here()
    with visiting(here, PLAIN) as visit:
        with pytest.raises(ProgramFailed, match="gave no answer"):
            visit.execute("c", ["sh", "-c", "kill -9 $PPID"])
        assert visit.execute("c", ["sh"]) == "by itself"
        assert visit.look(QUICK).processes and here.begun == 2


def test_a_program_that_a_session_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit_module, "_LATE", 0.0)
    here = Here()
    with visiting(here, PLAIN) as visit:
        held = int(visit.execute("c", ["sh", "-c", "echo $PPID"]))
        os.kill(held, signal.SIGSTOP)
        try:
            with pytest.raises(RefitError, match=r"took longer than 0\.1 s"):
                visit.look(replace(QUICK, limit=0.1))
            assert visit.execute("c", ["sh"]) == "by itself"
        finally:
            os.kill(held, signal.SIGCONT)
    with visiting(here, PLAIN) as visit:
        held = int(visit.execute("c", ["sh", "-c", "echo $PPID"]))
        with pytest.raises(ProgramFailed, match="gave no answer"):
            visit.execute(
                "c", ["sh", "-c", f"(sleep 2; kill -CONT {held}) >/dev/null 2>&1 & kill -STOP {held}"], limit=0.1
            )


@pytest.mark.parametrize("lie", ["", "[]\n", "no JSON\n", '{"code": "none"}\n', '{"code": 0, "said": 1, "why": ""}\n'])
def test_an_answer_that_is_none_is_a_program_that_failed(lie: str) -> None:
    with pytest.raises(ProgramFailed, match="gave no answer"):
        Visit(Here(), PLAIN, lambda _: lie).execute("c", ["sh"])


def test_no_more_of_an_answer_counts_than_was_asked_for() -> None:
    lie = json.dumps({"code": 0, "said": "a" * 100, "why": ""})
    assert Visit(Here(), PLAIN, lambda _: lie).execute("c", ["sh"], most=10) == "a" * 10


def test_a_hook_that_ends_all_python_programs_is_no_objection_to_a_move_that_was_agreed_to() -> None:
    def ended(_: str) -> str:
        raise RefitError("python3 ended without an answer.")

    assert "gave no answer" in hook.ask(Visit(Here(), PLAIN, ended), PLAIN, whether=False)
