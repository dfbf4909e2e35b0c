"""The plan of a drain: when a session leaves a machine that is to go down, and what its owner is told. Pure.

It leaves as soon as nobody works in it, and at a deadline in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.sessions.activity.evidence import Verdict
from flows.sessions.activity.seen import Seen, work_in
from flows.sessions.events import Event
from flows.sessions.model import Session

MACHINE = "machine"  # in the data of an event


@dataclass(frozen=True)
class DrainedSession:
    """A session on a machine that is to go down.

    Attributes:
        session: its record.
        running: whether it runs.
        since: since when it is known that it has to leave.
        seen: whether somebody or something works in it; none: nobody knows.
        obstacle: the remains of an earlier move; none: there are none.
        rests_until: until when it is left alone after its last move was deferred; none: it wasn't.
    """

    session: Session
    running: bool
    since: datetime
    seen: Seen | None
    obstacle: Reason | None = None
    rests_until: datetime | None = None


def decide(drained: DrainedSession, now: datetime, minutes: float) -> Decision:
    """The line of a plan for it: it moves with the image that it has, now or later.

    Args:
        drained: the session.
        now: when.
        minutes: how long people are waited for.
    """
    session, deadline = drained.session, drained.since + timedelta(minutes=minutes)
    action, reason = _answer(drained, now, deadline)
    moves = action is Action.migrate
    detail = work_in(drained.seen) if drained.seen and reason in (Reason.busy, Reason.state) else ""
    at = now if moves else None
    line = Decision(session.name, action, session.image, session.image, reason, detail)
    return replace(line, at=at, due=at, deadline=deadline, forced=moves and now >= deadline)


def _answer(drained: DrainedSession, now: datetime, deadline: datetime) -> tuple[Action, Reason | None]:
    if drained.obstacle or not drained.running:
        return Action.skip, drained.obstacle or Reason.stopped
    if now >= deadline:
        return Action.migrate, None
    if drained.rests_until and drained.rests_until > now:
        return Action.later, Reason.deferred
    if drained.seen is None:
        return Action.wait, Reason.unknown
    if drained.seen.verdict is Verdict.idle:
        return Action.migrate, None
    return Action.wait, Reason.state if drained.seen.verdict is Verdict.state else Reason.busy


def still_leaving(events: Iterable[Event]) -> dict[str, tuple[str, datetime]]:
    """Session → the machine that it has to leave by the events so far, and since when.

    Args:
        events: of `Kind.leaves`, oldest first.
    """
    last: dict[str, tuple[str, datetime]] = {}
    for event in events:
        if event.data.get(MACHINE):
            last[event.session] = str(event.data[MACHINE]), event.at
        else:
            last.pop(event.session, None)
    return last


def changed(leaving: Mapping[str, str], before: Mapping[str, tuple[str, datetime]]) -> dict[str, str]:
    """The differences to `before`: session → the machine that it now has to leave; empty: it may stay."""
    begun = {name: machine for name, machine in leaving.items() if before.get(name, ("",))[0] != machine}
    return {**begun, **dict.fromkeys(before.keys() - leaving.keys(), "")}


def notice(name: str, machine: str, deadline: datetime) -> tuple[str, str]:
    """Title and text for the owner of a session that has to leave its machine."""
    return (
        f"The session {name} moves to another machine",
        f"Its machine {machine} goes down for maintenance. The session moves as soon as nobody works in it, and by "
        f"{deadline:%Y-%m-%d %H:%M} UTC in any case. Its home and its address stay; programs that run in it end then.",
    )


def explanation(machine: str, since: datetime | None, minutes: float) -> str:
    """The sentence of a plan about a session that has to leave its machine.

    Args:
        machine: its name.
        since: since when a Refit that runs knows it; none: none has seen it yet.
        minutes: how long people are waited for; 0: no session moves for it.
    """
    beginning = f"it has to leave the machine {machine}, which was closed"
    if not minutes:
        return f"{beginning}, and is not moved for it (`kubernetes.drain_minutes: 0`)"
    if since is None:
        return f"{beginning}: it moves within {minutes:g} minutes after a Refit that runs has seen it"
    deadline = since + timedelta(minutes=minutes)
    return f"{beginning}: it moves as soon as nobody works in it, by {deadline:%Y-%m-%d %H:%M} UTC in any case"


def called_off_notice(name: str, machine: str) -> tuple[str, str]:
    """Title and text for the owner of a session whose machine stays after all, or that has left it."""
    return f"The session {name} stays", f"It doesn't have to leave the machine {machine} any more."
