"""The hooks of a session's owner: programs in the home that are asked before a move, and after it.

The one may say not now, the other that the new image is no good.
"""

from __future__ import annotations

from collections.abc import Callable

from flows.command import OutOfTime, ProgramFailed
from flows.sessions.engine import Engine
from flows.sessions.model import Session

HOOK, PROOF = ".config/refit/before-move", ".config/refit/after-move"
NOT_NOW = 75  # EX_TEMPFAIL of sysexits.h: try again later
SECONDS = 30.0
_LONGEST = 200
# Asked whether it may be, it is told `whether`; where nobody asks any more, `now`.
_CALL = f'cd && if [ -x {HOOK} ]; then exec ./{HOOK} "$1"; fi'
# No file is written: a home that is full is no fault of the image. What it prints itself says that it can't be.
_PROVE = f"""{{ cd && [ -w . ]; }} || {{ echo read-only; exit 0; }}
if [ -x {PROOF} ]; then exec ./{PROOF} moved >&2; fi"""


def ask(engine: Engine, session: Session, *, whether: bool = True) -> str:
    """Why the hook of a session that runs doesn't want it to be moved now; empty: there is none, or it may be.

    Whoever doesn't answer clearly is left alone: only 0 is a yes.

    Args:
        engine: where it runs.
        session: the session.
        whether: its answer counts; else the hook is only told that the session moves.
    """
    try:
        engine.execute(session.container, ["sh", "-c", _CALL, "sh", "whether" if whether else "now"], limit=SECONDS)
    except OutOfTime:
        return f"its hook ~/{HOOK} hasn't answered within {SECONDS:g} s"
    except ProgramFailed as error:
        return meaning(error.exit_code_of_program, error.tail)
    return ""


def meaning(code: int | None, said: str) -> str:
    """What an exit code other than 0 of a hook means. Pure."""
    last = last_words(said)
    why = "says not now" if code == NOT_NOW else f"ended with exit code {code}, which is no yes"
    return f"its hook ~/{HOOK} {why}" + (f": {last}" if last else "")


def disproof(engine: Engine, session: Session) -> str:
    """Why a session shouldn't stay in its new container; see `disproved`."""
    return disproved(lambda argv: engine.execute(session.container, argv, limit=SECONDS))


def disproved(execute: Callable[[list[str]], str]) -> str:
    """Why a session shouldn't be in a container: it can't write to its home, or its hook objects; else empty.

    Whoever has a hook has only 0 for a yes, as before a move.

    Args:
        execute: runs a program in that container, for `SECONDS` at most, and returns what it prints.
    """
    try:
        told = execute(["sh", "-c", _PROVE])
    except OutOfTime:
        return f"its hook ~/{PROOF} hasn't answered within {SECONDS:g} s"
    except ProgramFailed as error:
        last = last_words(error.tail)
        return f"its hook ~/{PROOF} ended with exit code {error.exit_code_of_program}" + (f": {last}" if last else "")
    return "it can't write to its home" if told.strip() else ""


def last_words(said: str) -> str:
    """The last line that a program of somebody else printed, as it can be shown. Pure."""
    return "".join(filter(str.isprintable, said.strip().rpartition("\n")[2]))[:_LONGEST]
