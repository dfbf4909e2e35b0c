"""The verb that says what a person may have, and what they use; and the checks of verbs that need more."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flows.sessions.people.person_limits import Account, Amounts, Homes, Resource
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.verbs.context import Nothing, Verb, VerbContext
from flows.web.people.scopes import Scope


@dataclass(frozen=True)
class Limit:
    """A person's limit of something, and their use of it.

    Attributes:
        resource: of what: sessions that there are, bytes of memory and cores of those that run.
        used: how much; none: a session that runs has no limit of its own.
        allowed: the most; none: there is no limit.
    """

    resource: Resource
    used: float | None
    allowed: float | None


@dataclass(frozen=True)
class Limits:
    """All limits of a person.

    Attributes:
        text: those that there are, for people; empty: there are none.
        limits: one for each resource.
        homes: their homes, and the limit of each.
    """

    text: str
    limits: tuple[Limit, ...]
    homes: Homes


def limits_of(account: Account, homes: Homes) -> Limits:
    """The limits of a person, as the API has them. Pure."""
    each = (
        Limit(resource, _finite(account.total.of(resource)), _finite(account.allowed.of(resource)))
        for resource in Resource
    )
    return Limits(" ".join(filter(None, (str(account), str(homes)))), tuple(each), homes)


def check(context: VerbContext, caller: Caller, amounts: Amounts, session: str = "") -> None:
    """Return if a session that takes so much is allowed as it looks now.

    The action itself looks once more, when no other of this person can come between.

    Args:
        context: the objects that verbs work with.
        caller: the owner of the session.
        amounts: the resources that it takes once it runs.
        session: its name; empty: it is a new one.

    Raises:
        OverLimit: it isn't.
    """
    context.allowance.check(caller.person, amounts, session)


def _finite(amount: float) -> float | None:
    return amount if math.isfinite(amount) else None


def _limits(context: VerbContext, caller: Caller, _: str, __: Nothing) -> Limits:
    return limits_of(context.allowance.account(caller.person), context.allowance.homes(caller.person))


VERBS = (
    Verb(
        "limits",
        "GET",
        "/limits",
        Scope.read,
        "Show what you may have of sessions, memory, cores and disk, and what you use.",
        _limits,
        gives=Limits,
    ),
)
