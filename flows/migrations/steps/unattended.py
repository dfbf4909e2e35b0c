"""Whether people may have been in the new container of a move while no process of ours watched it. Pure.

A process that was killed has watched until the last line that it wrote. The process that goes on after it writes first
into the journal what may have happened since: later nobody can tell any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from flows.migrations.move import Entry, Phase, has_code
from flows.migrations.move_steps import Code, StepName
from flows.sessions.model import Container, Running

TEXTS = {
    Code.unwatched: "nobody watched while the new container ran",
    Code.unwatched_ended: "nobody watched while the new container ran, and it has ended since",
}
# Into what ends as soon as it has its home, nobody gets.
AT_ONCE = timedelta(seconds=2)


def begun(entries: Sequence[Entry], step: str) -> datetime | None:
    """When this step was last begun; none: never."""
    return max((e.at for e in entries if (e.step, e.phase) == (step, Phase.intent) and e.at), default=None)


def since(entries: Sequence[Entry], new: Container | None) -> Code | None:
    """The event in the new container since the last line of a journal; none: there is none that matters."""
    first, last = begun(entries, StepName.start), entries[-1].at if entries else None
    if first is None or last is None or new is None:
        return None
    if new.running is Running.created and new.started is None:  # after a reboot, Podman calls all of them created
        return None
    if new.running is Running.running:
        return Code.unwatched
    if new.started is None or new.ended is None:  # the engine doesn't say
        return Code.unwatched_ended
    at_once = new.ended <= last or new.ended - max(new.started, first) <= AT_ONCE
    return None if at_once else Code.unwatched_ended


def alone(entries: Sequence[Entry], used: bool | None) -> bool:
    """Whether surely nobody has been in the new container.

    Args:
        entries: the lines of the journal.
        used: whether anybody has used it since it started, as it says itself; none: it doesn't say.
    """
    if has_code(entries, Code.unwatched_ended):
        return False
    if used is None:  # into one that never answered nobody got, unless it did so behind our back
        return not has_code(entries, Code.unwatched) and not _was_open(entries)
    return not used


def _was_open(entries: Sequence[Entry]) -> bool:
    return any((entry.step, entry.phase) == (StepName.answer, Phase.done) for entry in entries)
