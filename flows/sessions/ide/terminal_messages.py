"""Messages to the people who sit at a session's terminals, as `wall` writes them."""

from __future__ import annotations

from collections.abc import Sequence

from flows.sessions.activity.evidence import Look, Process
from flows.sessions.activity.probes import ProbeSpec, see
from flows.sessions.activity.program_kinds import SSHD
from flows.sessions.engine import Engine
from flows.sessions.model import Session

_LIMIT = 30.0
# A terminal whose program was stopped takes nothing; a writer would wait for ever.
_WRITE = """
text=$(cat)
for terminal in "$@"; do
    timeout 3 sh -c 'printf "\\r\\n%s\\r\\n" "$1" >"$2"' sh "$text" "$terminal" 2>/dev/null && echo "$terminal"
done
true
"""


def watched(look: Look) -> tuple[str, ...]:
    """The terminals of a session at whose other end a person's own program is: a shell of theirs, or ssh. Pure.

    Whether somebody looks at a terminal inside tmux or JupyterLab can't be told.
    """
    processes = {process.pid: process for process in look.processes}
    return tuple(
        sorted({p.terminal for p in look.processes if p.terminal and _from_outside(p, processes.get(p.parent))})
    )


def _from_outside(process: Process, parent: Process | None) -> bool:
    """Whether a process has its terminal from outside the container, or from an ssh connection."""
    return process.parent == 0 or (parent is not None and parent.argv[0].partition(": ")[0] in SSHD)


def write(engine: Engine, session: Session, text: str, terminals: Sequence[str]) -> tuple[str, ...]:
    """Write to terminals of a session that runs, which doesn't count as work; returns those that took it.

    Raises:
        RefitError: nothing can be done in the session.
    """
    if not terminals:
        return ()
    plain = "".join(letter if letter.isprintable() else "\r\n" if letter == "\n" else " " for letter in text)
    took = engine.execute(session.container, ["sh", "-c", _WRITE, "sh", *terminals], stdin=plain, limit=_LIMIT)
    return tuple(took.split())


def write_to_all(engine: Engine, session: Session, text: str) -> tuple[str, ...]:
    """Write to every terminal of a session that runs; returns those that took it.

    Raises:
        RefitError: nothing can be done in the session.
    """
    return write(engine, session, text, sorted(see(engine, session, ProbeSpec(seconds=0.1)).terminals))
