"""The notice that a session's login shells show to people who come in later."""

from __future__ import annotations

from flows.core.formatting import printable
from flows.sessions.engine import Engine
from flows.sessions.model import Session

LEFT = ".local/state/refit/notice"
"""The file in a home that holds the last notice: snippets/base/files/profile.sh shows it."""
_LEAVE = f"mkdir -p {LEFT.rpartition('/')[0]} && cat >{LEFT}"
_LIMIT = 30.0


def leave(engine: Engine, session: Session, text: str) -> None:
    """Leave a text in the home of a session that runs, which login shells show; without text, what was left goes.

    Raises:
        RefitError: nothing can be done in the session.
    """
    call = _LEAVE if text else f"rm -f {LEFT}"
    engine.execute(
        session.container, ["sh", "-c", f"cd && {call}"], stdin=text and f"{printable(text)}\n", limit=_LIMIT
    )
