"""The hooks of a session's owner: programs in the home that are asked before a move, and after it.

The one may say not now, the other that the new image is no good.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flows.core.formatting import on_a_line
from flows.core.programs.command import ProgramFailed
from flows.sessions.activity import supervise
from flows.sessions.activity.visit import Programs
from flows.sessions.model import Session

HOOK, PROOF = ".config/refit/before-move", ".config/refit/after-move"
NOT_NOW = 75  # EX_TEMPFAIL of sysexits.h: try again later
SECONDS = 30.0
# By then what runs it in the container has ended it, and says so.
LIMIT = SECONDS + 30.0
_LONGEST = 200
_SUPERVISE = f'exec python3 -I -c "$1" {SECONDS:g}'
# Asked whether it may be, it is told `whether`; where nobody asks any more, `now`.
_CALL = f'cd && if [ -x {HOOK} ]; then {_SUPERVISE} ./{HOOK} "$2"; fi'
# No file is written: a home that is full is no fault of the image. Its own output says that it can't be.
_READ_ONLY = "read-only"
_PROVE = f"""{{ cd && [ -w . ]; }} || {{ echo {_READ_ONLY}; exit 0; }}
if [ -n "$2" ]; then rm -f "$2"; fi
if [ -x {PROOF} ]; then {_SUPERVISE} ./{PROOF} moved; fi"""


@dataclass(frozen=True)
class Outcome:
    """The result of a hook: its exit code; none where it was ended, for its `time` or its `output`; its last words."""

    code: int | None
    why: str
    said: str


_OUTCOME = TypeAdapter(Outcome)


def ask(engine: Programs, session: Session, *, whether: bool = True) -> str:
    """Why the hook of a session that runs doesn't want it to be moved now; empty: there is none, or it may be.

    A session whose hook doesn't answer clearly is left alone: only 0 is a yes.

    Args:
        engine: where it runs.
        session: the session.
        whether: its answer counts; else the hook is only told that the session moves.
    """
    call = ["sh", "-c", _CALL, "sh", _script(), "whether" if whether else "now"]
    try:
        outcome = _read(engine.execute(session.container, call, limit=LIMIT))
    except ProgramFailed as error:
        return f"its hook ~/{HOOK} {_unclear(error)}"
    if outcome is None or outcome.code == 0:
        return ""
    return f"its hook ~/{HOOK} {ended(outcome)}" if outcome.code is None else meaning(outcome.code, outcome.said)


def _script() -> str:
    return Path(supervise.__file__).read_text(encoding="utf-8")


def _read(output: str) -> Outcome | None:
    """The outcome of a hook in this text; none: there is none."""
    try:
        return _OUTCOME.validate_json(output) if output.strip() else None
    except ValidationError:  # its owner has ended what ran it
        return Outcome(None, "", "")


def _unclear(error: ProgramFailed) -> str:
    return f"gave no answer: {error.brief}"


def ended(outcome: Outcome) -> str:
    """Why a hook has no exit code. Pure."""
    if outcome.why == "time":
        return f"hasn't answered within {SECONDS:g} s"
    if outcome.why == "output":
        return f"printed more than {supervise.MOST >> 20} MiB, and was ended"
    return "gave no answer"


def meaning(code: int | None, output: str) -> str:
    """The meaning of a hook's exit code other than 0. Pure."""
    last = last_words(output)
    why = "says not now" if code == NOT_NOW else f"ended with exit code {code}, which is no yes"
    return f"its hook ~/{HOOK} {why}" + (f": {last}" if last else "")


def disproof(engine: Programs, session: Session, outdated: str = "") -> str:
    """Why a session shouldn't stay in its new container; see `disproved`."""
    return disproved(lambda argv: engine.execute(session.container, argv, limit=LIMIT), outdated)


def disproved(execute: Callable[[list[str]], str], outdated: str = "") -> str:
    """Why a session shouldn't be in a container: it can't write to its home, or its hook objects; else empty.

    In an image with a hook only 0 is a yes, as before a move.

    Args:
        execute: runs a program in that container, for `LIMIT` seconds at most, and returns what it prints.
        outdated: a file in the home that is out of date whatever the hook says, and is removed; empty: none.
    """
    try:
        output = execute(["sh", "-c", _PROVE, "sh", _script(), outdated])
    except ProgramFailed as error:
        return f"its hook ~/{PROOF} {_unclear(error)}"
    if output.strip() == _READ_ONLY:
        return "it can't write to its home"
    outcome = _read(output)
    if outcome is None or outcome.code == 0:
        return ""
    if outcome.code is None:
        return f"its hook ~/{PROOF} {ended(outcome)}"
    last = last_words(outcome.said)
    return f"its hook ~/{PROOF} ended with exit code {outcome.code}" + (f": {last}" if last else "")


def last_words(output: str) -> str:
    """The last line that a program of somebody else printed, as it can be shown. Pure."""
    return on_a_line(output.strip().rpartition("\n")[2][:_LONGEST])[:_LONGEST]
