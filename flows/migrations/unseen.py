"""Whether people may have been in the new container of a move while no process of ours watched it. Pure.

A process that was killed has watched until the last line that it wrote. Whoever goes on after it says first, in the
journal, what may have happened since: later nobody can tell any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from flows.migrations.move import Entry, Phase
from flows.sessions.model import Container, Running

RAN = "nobody watched while the new container ran"
ENDED = "nobody watched while the new container ran, and it has ended since"
# How an answer fails after which the home isn't as it was, before anybody was let in.
CHANGED = "The new image changed the home"
# Into what ends as soon as it has its home, nobody gets.
AT_ONCE = timedelta(seconds=2)


def begun(entries: Sequence[Entry], step: str) -> datetime | None:
    """When this step was last begun; none: never."""
    return max((e.at for e in entries if (e.step, e.phase) == (step, Phase.intent) and e.at), default=None)


def since(entries: Sequence[Entry], new: Container | None) -> str:
    """What the new container has done since the last line of a journal: `RAN`, `ENDED`, or nothing that matters."""
    first, last = begun(entries, "start"), entries[-1].at if entries else None
    if first is None or last is None or new is None:
        return ""
    if new.running is Running.created and new.started is None:  # after a reboot, Podman calls all of them created
        return ""
    if new.running is Running.running:
        return RAN
    if new.started is None or new.ended is None:  # the engine doesn't say
        return ENDED
    return "" if new.ended <= last or new.ended - max(new.started, first) <= AT_ONCE else ENDED


def alone(entries: Sequence[Entry], used: bool | None, own_port: bool = False) -> bool:
    """Whether surely nobody has been in the new container.

    Args:
        entries: the lines of the journal.
        used: whether anybody has used it since it started, as it says itself; none: it doesn't say.
        own_port: people get in as soon as it answers, whether they are let in or not.
    """
    notes = {entry.note for entry in entries if entry.phase in (Phase.interrupted, Phase.reopened)}
    if ENDED in notes:
        return False
    if used is None:  # into one that never answered nobody got, unless it did so behind our back
        return RAN not in notes and not _was_open(entries, own_port)
    return not used


def _was_open(entries: Sequence[Entry], own_port: bool) -> bool:
    answers = [entry for entry in entries if entry.step == "answer"]
    return any(e.phase is Phase.done or (own_port and e.note.startswith(CHANGED)) for e in answers)
