"""Verbs about one's own sessions: see them, start and stop them, read their logs and their history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import Field

from flows.core.formatting import printable
from flows.migrations.journal import Journal
from flows.migrations.start_sessions import fetch_for_start, start_session
from flows.migrations.switch_profile import fetch_for_switch, switch_session
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.people.entitlements import Role
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.session_view import MySession
from flows.web.my_sessions.verbs import person_limit_verbs
from flows.web.my_sessions.verbs.context import DOWN, ONE, UP, Nothing, Parameters, Verb, VerbContext
from flows.web.people import offers, own_offers
from flows.web.people.scopes import Scope

_MOST_LINES, _MOST_TEXT = 1000, 1 << 18
_MOST_HAPPENINGS = 200


@dataclass(frozen=True)
class Log:
    """The last lines that a session wrote."""

    text: str


@dataclass(frozen=True)
class Happening:
    """Something that happened to a session.

    Attributes:
        at: when.
        kind: the kind of event, as a code.
        by: the person, or the part of Refit, that did it.
        what: more of it, for people.
    """

    at: datetime
    kind: str
    by: str
    what: str


@dataclass(frozen=True)
class Offered:
    """A profile that sessions can have.

    Attributes:
        profile: stem of its tag.
        release: of which release.
        title: its name for people.
        size: bytes (compressed) of its newest image; 0: there is none.
        built: when that was published; none: there is none.
        why_not: why it can't be had now; empty: it can.
        over_limit: why another session of it would be more than you may have; empty: it wouldn't.
        by: the person whose own profile it is; empty: it is one of the catalog.
        packages: names of the Python packages that it is made for; others come with them.
    """

    profile: str
    release: str
    title: str
    size: int
    built: datetime | None
    why_not: str
    over_limit: str = ""
    by: str = ""
    packages: tuple[str, ...] = ()


class Lines(Parameters):
    """How much of a log."""

    lines: int = Field(100, ge=1, le=_MOST_LINES, description="How many lines.")


class Chosen(Parameters):
    """Another profile."""

    profile: str = Field(max_length=200, description="E.g. jupyter-datascience-deb12-py311.", title="Profile")
    release: str = Field(max_length=20, description="E.g. 2026a.", title="Release")


def _list(context: VerbContext, caller: Caller, _: str, __: Nothing) -> tuple[MySession, ...]:
    return context.lookout.all(context.lookout.usable(caller.person), context.actions.all())


def _show(context: VerbContext, caller: Caller, name: str, _: Nothing) -> MySession:
    return context.one(caller, name)


def _start(context: VerbContext, caller: Caller, name: str, _: Nothing) -> MySession:
    context.mine(caller, name)
    amounts = context.allowance.of(name)
    person_limit_verbs.check(context, caller, amounts, name)

    def work() -> str:
        fetch_for_start(context.settings, name)
        with context.allowance.within(caller.person, amounts, name):
            context.allowance.bound_home(caller.person, name)
            _, result = start_session(context.settings, name)
        return "It runs on its new image." if result and result.moved else "It runs."

    return context.act(caller, name, "start", work)


def _stop(context: VerbContext, caller: Caller, name: str, _: Nothing) -> MySession:
    context.mine(caller, name)

    def work() -> str:
        context.lookout.sessions.stop(name)
        return "It is stopped. Its home stays as it is."

    return context.act(caller, name, "stop", work)


def check_offered(context: VerbContext, caller: Caller, chosen: Chosen) -> offers.Offer:
    """Return the offer, if the caller can have a profile now.

    Raises:
        Problem: it can't.
    """
    offered = {
        (offered_profile.profile, offered_profile.release): offered_profile
        for offered_profile in _offers(context, caller)
    }
    offer = offered.get((chosen.profile, chosen.release))
    if offer is None or offer.why_not:
        why = offer.why_not if offer else f"There is no profile {chosen.profile!r} in a release {chosen.release!r}."
        raise Problem(Code.refused, "That profile can't be had now.", why=why)
    return offer


def _change_profile(context: VerbContext, caller: Caller, name: str, chosen: Chosen) -> MySession:
    session = context.mine(caller, name)
    if session.state not in UP:
        raise Problem(Code.refused, "The session doesn't run.", hint="start it first; then it can be moved.")
    offer = check_offered(context, caller, chosen)
    amounts = context.allowance.takes(offer.memory, offer.cpus, offer.gpus)
    person_limit_verbs.check(context, caller, amounts, name)

    def work() -> str:
        fetch_for_switch(context.settings, chosen.profile, chosen.release)
        with context.allowance.within(caller.person, amounts, name):
            result = switch_session(context.settings, name, chosen.profile, chosen.release)
        if not result.moved:
            raise Problem(Code.refused, "The session has its old profile still.", why=result.reason)
        return f"It has the profile {chosen.profile} of release {chosen.release}."

    return context.act(caller, name, "change-profile", work)


def _logs(context: VerbContext, caller: Caller, name: str, lines: Lines) -> Log:
    context.mine(caller, name)
    return Log(printable(context.lookout.sessions.logs(name, lines.lines)[-_MOST_TEXT:]))


def _history(context: VerbContext, caller: Caller, name: str, _: Nothing) -> tuple[Happening, ...]:
    """Newest first. Guests aren't told: it names people."""
    if context.one(caller, name).role not in (Role.owner, Role.admin):
        raise Problem(Code.not_yours, "The history of a session is its owner's.")
    moves = [
        Happening(move.ended or move.created, f"move {move.state}", "", move.reason)
        for move in Journal(context.database).history(name)[-_MOST_HAPPENINGS:]
    ]
    events = History(context.database).events(name)[-_MOST_HAPPENINGS:]
    others = [
        Happening(event.at, event.kind.value, event.by, event.what)
        for event in events
        if event.kind not in (Kind.move_begun, Kind.move_ended)
    ]
    return tuple(sorted((*moves, *others), key=lambda event: event.at, reverse=True)[:_MOST_HAPPENINGS])


def _profiles(context: VerbContext, caller: Caller, _: str, __: Nothing) -> tuple[Offered, ...]:
    account = context.allowance.account(caller.person)
    return tuple(
        _offered(offer, context.allowance.why_not_another(account, offer)) for offer in _offers(context, caller)
    )


def _offers(context: VerbContext, caller: Caller) -> tuple[offers.Offer, ...]:
    """The offers to somebody: those of the catalog, and of people's own profiles."""
    own = own_offers.offers_to(context.settings, caller.person, context.allowance.groups_of(caller.person, None))
    return (*context.lookout.offers(), *own)


def _offered(offer: offers.Offer, over: str) -> Offered:
    size, built = (offer.image.size, offer.image.built) if offer.image else (0, None)
    what = offer.profile, offer.release, offer.text, size, built
    return Offered(*what, offer.why_not, over, offer.by, offer.packages)


_ALL = tuple[MySession, ...]
VERBS = (
    Verb("list", "GET", "/sessions", Scope.read, "List the sessions that you may use.", _list, gives=_ALL),
    Verb("show", "GET", ONE, Scope.read, "Show one session.", _show, inside=True),
    Verb(
        "start",
        "POST",
        f"{ONE}/start",
        Scope.sessions,
        "Start a session that is stopped; one that waits for a new image gets it before.",
        _start,
        later=True,
        button="Start",
        shown=DOWN,
    ),
    Verb(
        "stop",
        "POST",
        f"{ONE}/stop",
        Scope.sessions,
        "Stop a session. Its programs end; its home stays as it is.",
        _stop,
        later=True,
        button="Stop",
        shown=UP,
    ),
    Verb(
        "change-profile",
        "POST",
        f"{ONE}/profile",
        Scope.sessions,
        "Give a session that runs another profile, at once: home and address stay, and what fails is undone.",
        _change_profile,
        Chosen,
        later=True,
    ),
    Verb("logs", "GET", f"{ONE}/logs", Scope.read, "Read the last lines that a session wrote.", _logs, Lines, Log),
    Verb(
        "history",
        "GET",
        f"{ONE}/history",
        Scope.read,
        "Read what happened to a session, newest first.",
        _history,
        gives=tuple[Happening, ...],
    ),
    Verb(
        "profiles",
        "GET",
        "/profiles",
        Scope.read,
        "List the profiles of the supported releases, and why one can't be had now.",
        _profiles,
        gives=tuple[Offered, ...],
    ),
)
