"""Programs that a stop has ended, in words; and the meaning of a hook."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from flows.catalog.model import Access
from flows.core.programs import command
from flows.migrations.move import Entry, Phase
from flows.migrations.steps.shutdown_notice import ended_by
from flows.sessions.activity import supervise
from flows.sessions.activity.evidence import Evidence, Verdict
from flows.sessions.activity.hook import NOT_NOW, PROOF, ask, disproof, meaning
from flows.sessions.engine import Engine
from flows.sessions.ide.reopening import Document, Opened, look, summary
from flows.sessions.model import Session
from tests.support.waiting import PATIENCE, wait_until

NOTEBOOK = Document("work/a.ipynb", "a.ipynb", "notebook", "python3")
ENDED = Opened((NOTEBOOK,), ("1",), ("sleep 600, pid 17",))


def test_what_ended_and_what_is_open_again_is_told() -> None:
    assert summary(ENDED, Opened((NOTEBOOK,), ("1",))).splitlines() == [
        "Ended: the kernel python3 of work/a.ipynb; the terminal 1; sleep 600, pid 17.",
        "Opened again, and empty: the kernel python3 of work/a.ipynb; the terminal 1.",
    ]
    assert summary(Opened(), Opened()) == ""


def test_the_kernel_of_a_document_is_named_once() -> None:
    state = {"documents": [vars(NOTEBOOK) | {"kernel_id": "12ab"}], "terminals": []}
    engine = cast(Engine, SimpleNamespace(execute=lambda *_, **__: json.dumps(state)))
    session = cast(Session, SimpleNamespace(container="c", access=Access(protocol="jupyter", port=8888)))
    running = [
        Evidence(Verdict.state, "kernel python3 12ab holds x (int)", ends=True, kernel="12ab"),
        Evidence(Verdict.state, "kernel python3 34cd may hold something", ends=True, kernel="34cd"),
        Evidence(Verdict.busy, "sleep 600, pid 8", ends=True),
    ]
    assert summary(look(engine, session, running), Opened()) == (
        "Ended: the kernel python3 of work/a.ipynb; kernel python3 34cd may hold something; sleep 600, pid 8."
    )


def test_what_is_open_at_the_last_look_before_the_stop_is_what_ended() -> None:
    earlier, last = (Entry("look", Phase.done, "nobody works in it", data=one.to_json()) for one in (Opened(), ENDED))
    assert ended_by([earlier, last, Entry("stop", Phase.done)]) == ENDED
    for note in ("nobody works in it", "it was agreed to\n{}", '{"documents": 1}'):
        assert ended_by([Entry("look", Phase.done, note)]) == Opened()
    assert ended_by([]) == Opened()


@pytest.mark.parametrize(
    ("code", "said", "means"),
    [
        (NOT_NOW, "", "says not now"),
        (NOT_NOW, "saving\ntraining ends at 18:00\n", "says not now: training ends at 18:00"),
        (NOT_NOW, "\x1b[2Jno", "says not now: \\x1b[2Jno"),
        (1, "", "ended with exit code 1, which is no yes"),
    ],
)
def test_only_an_exit_code_of_0_is_a_yes(code: int, said: str, means: str) -> None:
    assert meaning(code, said) == f"its hook ~/.config/refit/before-move {means}"


class Here:
    """Runs programs on this machine, as a person whose home is a folder, in the place of a session."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def execute(self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = 0) -> str:
        return command.run(["env", f"HOME={self._home}", *argv], stdin=stdin, limit=limit).stdout


def says_after_a_move(home: Path) -> str:
    return disproof(cast(Engine, Here(home)), cast(Session, SimpleNamespace(container="refit-ada-2")))


@pytest.mark.slow
def test_after_a_move_the_home_can_be_written_to_and_its_hook_has_the_last_word(tmp_path: Path) -> None:
    assert says_after_a_move(tmp_path) == ""
    assert says_after_a_move(tmp_path / "gone") == "it can't write to its home"
    hook = tmp_path / PROOF
    hook.parent.mkdir(parents=True)
    hook.write_text('#!/bin/sh\necho "$1: no CUDA"; exit "$(cat ~/code)"\n')
    (tmp_path / "code").write_text("3")
    assert says_after_a_move(tmp_path) == ""  # nobody may run it
    hook.chmod(0o755)
    assert says_after_a_move(tmp_path) == f"its hook ~/{PROOF} ended with exit code 3: moved: no CUDA"
    (tmp_path / "code").write_text("0")
    assert says_after_a_move(tmp_path) == ""


RUN = [sys.executable, "-I", str(supervise.__file__)]


def supervised(script: str, seconds: float = PATIENCE) -> dict[str, object]:
    return dict(json.loads(command.run([*RUN, str(seconds), "sh", "-c", script], limit=PATIENCE).stdout))


def gone(pids: Path) -> bool:
    """Whether no process that was noted is left; one that was ended early has noted nothing."""
    return not pids.exists() or not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "yes",
        "cat /dev/zero",
        "trap '' PIPE TERM HUP; while :; do echo x; done",
        "setsid sh -c 'echo $$ >>{pids}; exec yes' & wait",
    ],
)
def test_a_hook_that_prints_without_end_is_ended_with_all_that_it_started(tmp_path: Path, script: str) -> None:
    pids = tmp_path / "pids"
    outcome = supervised(f"echo $$ >>{pids}; {script.replace('{pids}', str(pids))}")
    assert (outcome["code"], outcome["why"]) == (None, "output")
    wait_until(lambda: gone(pids))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["exec sleep 1000", "exec >&- 2>&-; sleep 1000", "trap '' TERM; sleep 1000 & wait"])
def test_a_hook_that_goes_on_is_ended_when_its_time_is_up(tmp_path: Path, script: str) -> None:
    outcome = supervised(f"echo $$ >>{tmp_path}/pids; {script}", seconds=0.5)
    assert (outcome["code"], outcome["why"]) == (None, "time")
    wait_until(lambda: gone(tmp_path / "pids"))


@pytest.mark.parametrize("left", ["sleep 1000", "yes", "exec >/dev/null 2>&1; (sleep 1000 & sleep 1000)"])
def test_what_a_hook_has_left_behind_ends_with_it(tmp_path: Path, left: str) -> None:
    outcome = supervised(
        f"setsid sh -c 'echo $$ >{tmp_path}/pids; {left}; true' & "
        f"until [ -s {tmp_path}/pids ]; do sleep 0.01; done; echo no; exit 75"
    )
    assert outcome["code"] == NOT_NOW or (left, outcome["why"]) == ("yes", "output")
    wait_until(lambda: gone(tmp_path / "pids"))


def test_what_the_last_words_are_and_a_hook_that_cant_be_run(tmp_path: Path) -> None:
    assert supervised("echo one; echo two >&2; kill -9 $$") == {"code": 137, "why": "", "said": "one\ntwo\n"}
    told = json.loads(command.run([*RUN, "10", str(tmp_path / "none")]).stdout)
    assert told["code"] == 126


def test_an_outcome_that_cant_be_read_is_no_yes() -> None:
    class Lying(Here):
        def execute(self, *_: object, **__: object) -> str:
            return '{"code": "0"'

    assert "gave no answer" in ask(cast(Engine, Lying(Path())), cast(Session, SimpleNamespace(container="c")))
