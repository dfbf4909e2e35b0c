"""The verbs by which a person begins another session. The Hub makes it, as it does after its own form."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from pydantic import Field

from flows.gateway import routes
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.verbs import person_limit_verbs
from flows.web.my_sessions.verbs.context import Nothing, Verb, VerbContext
from flows.web.my_sessions.verbs.own_verbs import Chosen, check_offered
from flows.web.people.action_records import ActionRecords, Service
from flows.web.people.client import HubClient
from flows.web.people.scopes import Scope
from flows.web.people.servers import Servers

# Of a person's sessions other than the first.
SERVER_NAME = r"^([a-z][a-z0-9-]{0,29})?$"


class ToCreate(Chosen):
    """Another session."""

    server: str = Field(
        "",
        pattern=SERVER_NAME,
        description="Its name for you: a-z, 0-9 and hyphens; empty: your first session.",
        title="Name",
    )


@dataclass(frozen=True)
class Begun:
    """A session that is being made.

    Attributes:
        server: its name for its owner.
        page: where the Hub shows how far it is, and what is the matter if it fails.
    """

    server: str
    page: str


@dataclass(frozen=True)
class Creation:
    """How the session of a server is made, or was made not long ago.

    Attributes:
        server: its name for its owner; empty: their first session.
        since: when that was asked for.
        ended: when it ended; none: it goes on.
        problem: why there is no session; empty: it is there.
        hint: the next thing to do.
    """

    server: str
    since: datetime
    ended: datetime | None
    problem: str
    hint: str


def _create(context: VerbContext, caller: Caller, _: str, asked: ToCreate) -> Begun:
    offer = check_offered(context, caller, asked)
    if session := Servers(context.settings).session(caller.person, asked.server):
        raise Problem(
            Code.refused, f"You have that session already: {session.name}.", hint="choose another name, or start it."
        )
    person_limit_verbs.check(context, caller, context.allowance.takes(offer.memory, offer.cpus, offer.gpus))
    options = {"release": asked.release, "profile": asked.profile}
    HubClient(context.settings).note(caller.person, asked.server, options)
    words = filter(None, (caller.person, asked.server))
    return Begun(asked.server, f"{routes.HUB}/spawn-pending/{'/'.join(quote(word, safe='') for word in words)}")


def _creations(context: VerbContext, caller: Caller, _: str, __: Nothing) -> tuple[Creation, ...]:
    every = ActionRecords(context.database, Service.hub).creations(caller.person)
    return tuple(
        Creation(name, action.since, action.ended, action.problem, action.hint)
        for name, action in sorted(every.items())
    )


VERBS = (
    Verb(
        "create",
        "POST",
        "/sessions",
        Scope.sessions,
        "Begin another session, with a profile that can be had now.",
        _create,
        ToCreate,
        Begun,
        later=True,
    ),
    Verb(
        "creations",
        "GET",
        "/creations",
        Scope.read,
        "List the sessions that are being made for you, and why one wasn't made in the last ten minutes.",
        _creations,
        gives=tuple[Creation, ...],
    ),
)
