"""An action of a person that takes its time, and what came of it in words for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flows.core.errors import RefitError, UnknownName
from flows.sessions.people.person_limits import OverLimit


@dataclass(frozen=True)
class Doing:
    """Something that was asked for and takes its time.

    Attributes:
        verb: the action, as the API calls it.
        by: the person who asked.
        since: when.
        ended: when it ended; none: it goes on.
        problem: why it failed; empty: it didn't.
        hint: the next thing to do.
        note: its result, or its present step, for people.
    """

    verb: str
    by: str
    since: datetime
    ended: datetime | None = None
    problem: str = ""
    hint: str = ""
    note: str = ""


def words(error: RefitError) -> str:
    """An error in words for the person whose action failed; names of others, which some list, are left out."""
    why = "" if isinstance(error, UnknownName) else error.why
    return " ".join(filter(None, (error.what, why)))


def hint(error: RefitError) -> str:
    """The advice for that person; empty: the advice of most errors is for operators."""
    return error.hint if isinstance(error, OverLimit) else ""
