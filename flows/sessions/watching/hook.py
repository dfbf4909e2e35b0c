"""The hook of a session's owner: a program in the home that is asked before a move, and may say not now."""

from __future__ import annotations

from flows.command import OutOfTime, ProgramFailed
from flows.sessions.engine import Engine
from flows.sessions.model import Session

HOOK = ".config/refit/before-move"
NOT_NOW = 75  # EX_TEMPFAIL of sysexits.h: try again later
SECONDS = 30.0
_LONGEST = 200
# Asked whether it may be, it is told `whether`; where nobody asks any more, `now`.
_CALL = f'cd && if [ -x {HOOK} ]; then exec ./{HOOK} "$1"; fi'


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
    last = "".join(filter(str.isprintable, said.strip().rpartition("\n")[2]))[:_LONGEST]
    why = "says not now" if code == NOT_NOW else f"ended with exit code {code}, which is no yes"
    return f"its hook ~/{HOOK} {why}" + (f": {last}" if last else "")
