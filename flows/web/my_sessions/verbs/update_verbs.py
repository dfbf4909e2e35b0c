"""Verbs about when a session moves onto its new image: now, later, or not before a day."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated, Any

from pydantic import Field

from flows.core.database import now
from flows.core.lazily import lazily
from flows.core.settings.policy import Mode
from flows.migrations.planning.rollout import Reason
from flows.migrations.results import Result
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.sessions import preferences
from flows.sessions.wishes import PreferenceStore
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.session_view import MySession
from flows.web.my_sessions.verbs.context import EVERY, ONE, UP, Parameters, Verb, VerbContext
from flows.web.people.scopes import Scope

with lazily(globals()):
    from flows.migrations.executor import MoveExecutor

# Days. To put it off for longer, or to leave a session alone for good, is for the operator.
LONGEST = 30
_CLOSED = {
    Reason.paused: "The operator has paused its rollout.",
    Reason.aborted: "The operator has aborted its rollout.",
}
MODES: dict[str, str] = {
    Mode.when_idle.value: "when nobody works in it",
    Mode.ask.value: "when I say so",
    Mode.next_start.value: "at its next start",
    Mode.pin.value: "not before the day",
    Mode.forced_by.value: "on the day at the latest",
}


class Seen(Parameters):
    """The image that somebody has looked at."""

    image: str = Field(
        "",
        max_length=100,
        description="Digest of the image that you agree to (`update.image`): no other one comes; empty: the newest.",
        json_schema_extra={"hidden": True},
    )


class Later(Parameters):
    """For how long."""

    duration: str = Field(
        "2h",
        max_length=20,
        description="30m, 2h, 1d12h; 30 days at most.",
        title="For",
        json_schema_extra={"choices": [["2h", "2 hours"], ["1d", "a day"], ["3d", "3 days"], ["7d", "a week"]]},
    )


class When(Parameters):
    """When a session moves."""

    mode: Mode = Field(
        description="When it moves: when it is idle, when asked, at its next start, not before a day, or by a day.",
        title="It moves",
        json_schema_extra={"choices": [list(pair) for pair in MODES.items()]},
    )
    day: Annotated[date | None, Field(description="For pin and forced-by, within 30 days.", title="Day")] = None


def _move(context: VerbContext, caller: Caller, name: str, seen: Seen) -> MySession:
    session = context.mine(caller, name)
    update = session.update
    if update is None or update.image is None:
        raise Problem(Code.refused, "The session has the newest image of its profile.")
    if seen.image not in ("", update.image.digest):
        raise Problem(Code.refused, "A newer image has come since you looked.", hint="look at it first.")
    if session.state not in UP:
        raise Problem(Code.refused, "The session doesn't run.", hint="start it first; then it can be moved.")
    if update.reason in _CLOSED:
        raise Problem(Code.refused, "The session can't move now.", why=_CLOSED[update.reason])
    # The last word holds: an owner who agrees to move now has no pin, and hasn't put it off any more.
    unpinned: dict[str, Any] = {"mode": None, "until": None} if update.mode is Mode.pin else {}
    _change(context, caller, name, agreed=update.image.digest, snoozed_until=None, **unpinned)
    image, changes = update.image.digest, update.changes
    return context.act(caller, name, "move", lambda: _moved(context, name, image, changes))


def _moved(context: VerbContext, name: str, image: str, changes: str) -> str:
    [line] = SessionPlanner(context.settings).plan([name], "")
    if line.by and line.new != image:
        raise Problem(Code.refused, f"{line.by} has published another image meanwhile.", hint="look at it first.")
    return outcome_sentence(MoveExecutor.open(context.settings).carry_out(line, changes))


def outcome_sentence(result: Result) -> str:
    """The outcome of a move, for its owner.

    Raises:
        Problem: the session wasn't moved.
    """
    if not result.moved:
        raise Problem(Code.refused, "It has not moved; it runs on the image that it had.", why=result.reason)
    away = f" It was away for {result.downtime:.0f} s." if result.downtime is not None else ""
    return f"It runs on its new image.{away}"


def _snooze(context: VerbContext, caller: Caller, name: str, later: Later) -> MySession:
    context.mine(caller, name)
    length = preferences.read_duration(later.duration)
    if length > timedelta(days=LONGEST):
        raise Problem(Code.invalid, f"A move can be put off for {LONGEST} days at most.")
    _change(context, caller, name, snoozed_until=now() + length, agreed="")
    return context.one(caller, name)


def _choose_mode(context: VerbContext, caller: Caller, name: str, when: When) -> MySession:
    context.mine(caller, name)
    dated = when.mode in (Mode.pin, Mode.forced_by)
    if dated != bool(when.day):
        what = "Choose a day with that." if dated else "A day belongs to `pin` and `forced-by` alone."
        raise Problem(Code.invalid, what, hint="write it as 2026-12-31.")
    if when.day and not now().date() <= when.day <= now().date() + timedelta(days=LONGEST):
        raise Problem(Code.invalid, f"The day has to be within the next {LONGEST} days.")
    _change(context, caller, name, **preferences.chosen_mode(when.mode, str(when.day or "")))
    return context.one(caller, name)


def _change(context: VerbContext, caller: Caller, name: str, **changes: Any) -> None:
    by = f"{caller.person}, from inside" if caller.session else caller.person
    PreferenceStore(context.database).change(name, by, **changes)


def _is_behind(session: MySession) -> bool:
    return bool(session.update and session.update.image)


VERBS = (
    Verb(
        "move",
        "POST",
        f"{ONE}/move",
        Scope.updates,
        "Move a session onto its newest image now, whatever works in it; a failed move is undone.",
        _move,
        Seen,
        later=True,
        button="Move now",
        shown=UP,
        fits=_is_behind,
    ),
    Verb(
        "snooze",
        "POST",
        f"{ONE}/snooze",
        Scope.updates,
        "Put a session's move off for a while, though not past its deadline.",
        _snooze,
        Later,
        inside=True,
        button="Later",
        shown=UP,
        fits=_is_behind,
    ),
    Verb(
        "mode",
        "POST",
        f"{ONE}/mode",
        Scope.updates,
        "Choose when a session moves onto new images.",
        _choose_mode,
        When,
        inside=True,
        button="Choose",
        shown=EVERY,
    ),
)
