"""Verbs about the snapshots of one's sessions: take one, see them, go back to one, remove one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import Field

from flows.migrations.snapshots import snapshot_actions
from flows.migrations.snapshots.roll_back import InUse, roll_back
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.session_view import MySession
from flows.web.my_sessions.verbs import person_limit_verbs
from flows.web.my_sessions.verbs.context import EVERY, ONE, Nothing, Parameters, Verb, VerbContext
from flows.web.people.scopes import Scope

_LONGEST = 200


class ToTake(Parameters):
    """The name of a snapshot."""

    name: str = Field(
        "",
        max_length=_LONGEST,
        description="Its name; empty: by the moment, and retention removes it some day.",
        title="Name, if it shall stay",
    )


class ToGoBack(Parameters):
    """Where a session goes back to."""

    snapshot: str = Field(min_length=1, max_length=_LONGEST, description="Name or id of the snapshot.")
    confirm: str = Field(
        "", max_length=_LONGEST, description="Name of the session: its owner knows what this does.", title="Its name"
    )
    force: bool = Field(False, description="Whether it is stopped though something works in it.")


class ToRemove(Parameters):
    """A snapshot that goes for good."""

    snapshot: str = Field(min_length=1, max_length=_LONGEST, description="Name or id of the snapshot.")
    confirm: str = Field(
        "", max_length=_LONGEST, description="The snapshot's name: its owner knows what this does.", title="Its name"
    )


@dataclass(frozen=True)
class Kept:
    """A snapshot of a session.

    Attributes:
        name: as people call it.
        id: never given twice.
        kind: why it was taken, as a code.
        by: the person who took it; empty: Refit did.
        at: when.
        note: of that person.
        image: digest of the image that the session had.
        size: bytes that come back if it is removed; none: nobody knows.
    """

    name: str
    id: str
    kind: str
    by: str
    at: datetime
    note: str
    image: str
    size: int | None


def _snapshots(context: VerbContext, caller: Caller, name: str, _: Nothing) -> tuple[Kept, ...]:
    """Newest first."""
    context.mine(caller, name)
    sessions = context.lookout.sessions
    every = snapshot_actions.all_of(sessions, sessions.store.session(name))
    return tuple(
        Kept(
            snapshot.name,
            snapshot.id,
            snapshot.kind.value,
            snapshot.by,
            snapshot.at,
            snapshot.note,
            snapshot.image,
            snapshot.size,
        )
        for snapshot in reversed(every)
    )


def _snapshot(context: VerbContext, caller: Caller, name: str, asked: ToTake) -> MySession:
    context.mine(caller, name)

    def work() -> str:
        taken = snapshot_actions.take(context.lookout.sessions, name, caller.person, called=asked.name)
        return f"The snapshot {taken.name} holds its home as it was."

    return context.act(caller, name, "snapshot", work)


def _roll_back(context: VerbContext, caller: Caller, name: str, asked: ToGoBack) -> MySession:
    context.mine(caller, name)
    chosen = snapshot_actions.find(context.lookout.sessions, name, asked.snapshot)
    if asked.confirm != name:
        raise Problem(
            Code.unconfirmed,
            f"The session {name!r} has not gone back to {chosen.name!r}: that has to be confirmed.",
            why="It stops for it, and its programs end. Its home of now becomes a snapshot, too.",
            hint="give the session's name as `confirm`.",
        )
    takes = context.allowance.of(name)
    person_limit_verbs.check(context, caller, takes, name)

    def work() -> str:
        try:
            with context.allowance.within(caller.person, takes, name):
                result = roll_back(context.settings, name, chosen.id, caller.person, force=asked.force)
        except InUse as error:
            raise Problem(Code.busy, error.what, why=error.why, hint="wait, or send `force`.") from None
        if not result.moved:
            raise Problem(Code.refused, "It has not gone back; its home is as it was.", why=result.reason)
        return f"Its home is what it was in {chosen.name}. The home from before is a snapshot now."

    return context.act(caller, name, "roll-back", work)


def _remove(context: VerbContext, caller: Caller, name: str, asked: ToRemove) -> MySession:
    context.mine(caller, name)
    chosen = snapshot_actions.find(context.lookout.sessions, name, asked.snapshot)
    if asked.confirm != chosen.name:
        raise Problem(
            Code.unconfirmed,
            f"The snapshot {chosen.name!r} of {name!r} is still there: its removal has to be confirmed.",
            why="Nobody can go back to it afterwards.",
            hint="give the snapshot's name as `confirm`.",
        )

    def work() -> str:
        snapshot_actions.remove(context.lookout.sessions, name, chosen.id, caller.person)
        return f"The snapshot {chosen.name} is gone."

    return context.act(caller, name, "remove-snapshot", work)


VERBS = (
    Verb(
        "snapshots",
        "GET",
        f"{ONE}/snapshots",
        Scope.read,
        "List the snapshots of a session, newest first.",
        _snapshots,
        gives=tuple[Kept, ...],
    ),
    Verb(
        "snapshot",
        "POST",
        f"{ONE}/snapshots",
        Scope.sessions,
        "Take a snapshot of a session's home and volumes; the session may run.",
        _snapshot,
        ToTake,
        later=True,
        button="Take a snapshot",
        shown=EVERY,
    ),
    Verb(
        "roll-back",
        "POST",
        f"{ONE}/rollback",
        Scope.sessions,
        "Let home and volumes be what they are in a snapshot. The session stops for it, and starts anew.",
        _roll_back,
        ToGoBack,
        later=True,
    ),
    Verb(
        "remove-snapshot",
        "POST",
        f"{ONE}/snapshots/remove",
        Scope.sessions,
        "Remove a snapshot for good.",
        _remove,
        ToRemove,
        later=True,
    ),
)
