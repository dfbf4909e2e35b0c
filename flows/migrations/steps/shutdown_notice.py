"""Around the stop of a session: warn who is in it, write down what ends, and open again afterwards what can be."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.migrations.journal import Journal
from flows.migrations.move import Entry, Move, Phase
from flows.migrations.move_steps import State, StepName
from flows.sessions.activity.evidence import Look
from flows.sessions.activity.probes import FINAL_PROBE
from flows.sessions.activity.verdict import judge
from flows.sessions.activity.visit import Visit
from flows.sessions.ide import reopening, terminal_messages
from flows.sessions.ide.page_notices import Windows
from flows.sessions.ide.reopening import Opened
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session

MOVES_NOW = "This session moves onto another image now. Its home stays as it is; programs that run in it end."
GOES_BACK_NOW = (
    "The home of this session goes back to a snapshot now, and as it is it becomes another one; programs that run end."
)


LEAVES_NOW = "This session moves to another machine now. Its home stays as it is; programs that run in it end."


def warn(sessions: Sessions, move: Move, seen: Look | None = None) -> None:
    """Tell whoever is in a session that it moves now; it does so whether they can be told or not.

    Args:
        sessions: those of this machine.
        move: of the session.
        seen: the last look at it, by which its terminals are known; none: they are looked for.
    """
    session = move.before
    notice = GOES_BACK_NOW if move.back_to else LEAVES_NOW if move.relocates else MOVES_NOW
    with suppress(RefitError):
        text = f"{notice} It can be reached again within a minute."
        if seen is None:
            terminal_messages.write_to_all(sessions.engine, session, text)
        else:
            terminal_messages.write(sessions.engine, session, text, sorted(seen.terminals))
    with suppress(RefitError):
        if pages := sessions.pages(session):
            pages.leave_notice("moves", f"The session {session.name} moves", f"{notice} {pages.comes_back}")


def title_after(move: Move) -> str:
    """The title of the notice of a move that has come to its end. Pure."""
    if move.back_to:
        return f"The home of the session {move.after.name} is as it was in a snapshot"
    if move.relocates:
        return f"The session {move.after.name} is on another machine now"
    return f"The session {move.after.name} is on another image now"


def open_in(settings: Settings, visit: Visit, session: Session) -> tuple[Opened, Look | None]:
    """The programs that a stop would end, and what was seen; nothing if the session can't tell.

    That keeps nobody from being moved.
    """
    seen: Look | None = None
    with suppress(RefitError):
        seen = visit.look(FINAL_PROBE)
        running = judge(seen, session.access.helpers, settings.idle_minutes * 60).ending
        return reopening.look(visit, session, running), seen
    return Opened(), seen


def ended_by(entries: Sequence[Entry]) -> Opened:
    """The programs that were open in a session before its move stopped it, by its last look. Pure."""
    looks = [entry.data for entry in entries if (entry.step, entry.phase) == (StepName.look, Phase.done)]
    return Opened.from_json(looks[-1]) if looks else Opened()


def aftermath(journal: Journal, session: str) -> str:
    """The programs that a session's last move has ended and opened again, as its person was told; empty: none."""
    moves = journal.history(session)
    if not moves or moves[-1].state is not State.cleaned:
        return ""
    lines = reversed(journal.entries(moves[-1]))
    return next((entry.note for entry in lines if (entry.step, entry.phase) == (StepName.clean, Phase.done)), "")


def expect_pages(sessions: Sessions, session: Session, ended: Opened) -> None:
    """Prepare a session that is back for the pages that were open: they ask for their terminals at once."""
    if ended.terminals and session.access.protocol == "jupyter":
        with suppress(RefitError):  # then the tabs of its terminals are closed, and `reopen` opens them anew
            sessions.jupyter(session).await_terminals(ended.terminals)


def reopen(sessions: Sessions, session: Session, ended: Opened, title: str, more: str = "") -> str:
    """Open again what can be in a session that is back, and tell its person, `more` as well; returns what they read."""
    message = _together(reopening.summary(ended, Opened()), more)
    with suppress(RefitError):
        if isinstance(pages := sessions.pages(session), Windows):
            pages.remove()
    if session.access.protocol != "jupyter":
        return message
    with suppress(RefitError):  # it runs and is proven: that nobody could be told of it undoes nothing
        jupyter = sessions.jupyter(session)
        if message := _together(reopening.summary(ended, reopening.reopen(jupyter, ended)), more):
            jupyter.leave_notice("moved", title, message)
    return message


def tell(sessions: Sessions, session: Session, title: str, text: str) -> str:
    """Let the notice of a move that has come to its end be another one; returns its text."""
    if session.access.protocol == "jupyter":
        with suppress(RefitError):
            sessions.jupyter(session).leave_notice("moved", title, text)
    return text


def _together(*texts: str) -> str:
    return "\n".join(filter(None, texts))
