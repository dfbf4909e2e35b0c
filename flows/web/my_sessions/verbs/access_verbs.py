"""Verbs about the people who get into one's sessions: shares, and one's own keys for ssh."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import Field, JsonValue

from flows.core.database import now
from flows.sessions import preferences
from flows.sessions.people.entitlements import Kind
from flows.sessions.people.person_keys import PersonKey, PersonKeys
from flows.sessions.ssh.keys import read_keys
from flows.web.authorizer.sharing import Shared
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.verbs.context import EVERY, ONE, Nothing, Parameters, Verb, VerbContext
from flows.web.people.scopes import Scope

_LONGEST_SUBJECT = 255
_KINDS: list[JsonValue] = [
    [Kind.person.value, "a person"],
    [Kind.group.value, "a group"],
    [Kind.code.value, "whoever has a link"],
]
_LASTING: list[JsonValue] = [["", "until I end it"], ["2h", "for 2 hours"], ["1d", "for a day"], ["7d", "for a week"]]


class ToShare(Parameters):
    """With whom a session is shared."""

    kind: Kind = Field(
        Kind.person,
        description="A person, a group, or a code: a link for the first person who accepts it.",
        title="With",
        json_schema_extra={"choices": _KINDS},
    )
    subject: str = Field(
        "", max_length=_LONGEST_SUBJECT, description="Name of that person or group.", title="Name of person or group"
    )
    duration: str = Field(
        "",
        max_length=20,
        description="When it ends by itself: 2h, 3d; empty: it doesn't.",
        title="How long",
        json_schema_extra={"choices": _LASTING},
    )


class ToEnd(Parameters):
    """A share that ends."""

    kind: Kind = Field(description="As `shares` has it.")
    subject: str = Field(min_length=1, max_length=_LONGEST_SUBJECT, description="As `shares` has it.")


class NewKeys(Parameters):
    """Public keys."""

    keys: str = Field(min_length=1, max_length=10_000, description="Public keys, one a line.", title="Public key")


class OldKey(Parameters):
    """A key that goes."""

    key: str = Field(min_length=1, max_length=_LONGEST_SUBJECT, description="Its fingerprint or its title.")


@dataclass(frozen=True)
class Given:
    """A share that was just made.

    Attributes:
        kind: person, group or code.
        subject: name of the person or the group, or the Hub's number of the code.
        until: when it ends by itself; none: it doesn't.
        link: to be given to one person, which is told this once; empty: there is none.
    """

    kind: Kind
    subject: str
    until: datetime | None
    link: str = ""


@dataclass(frozen=True)
class Ended:
    """The end of a share: whether there was one."""

    ended: bool


@dataclass(frozen=True)
class Key:
    """A key of the person who asks: what it is called, its fingerprint, and since when it is theirs."""

    title: str
    fingerprint: str
    added: datetime


def _shares(context: VerbContext, caller: Caller, name: str, _: Nothing) -> tuple[Shared, ...]:
    context.mine(caller, name)
    return context.sharing.shares(name)


def _share(context: VerbContext, caller: Caller, name: str, given: ToShare) -> Given:
    context.mine(caller, name)
    until = now() + _length(given.duration) if given.duration else None
    if given.kind is Kind.code:
        grant, link = context.sharing.code(name, caller.person, until)
        return Given(Kind.code, grant.subject, until, link)
    if not given.subject:
        raise Problem(Code.invalid, f"A {given.kind.value} has a name.", hint="say with whom the session is shared.")
    grant = context.sharing.share(name, given.kind, given.subject, caller.person, until)
    return Given(given.kind, grant.subject, until)


def _length(duration: str) -> timedelta:
    return preferences.read_duration(duration)


def _unshare(context: VerbContext, caller: Caller, name: str, share: ToEnd) -> Ended:
    context.mine(caller, name)
    return Ended(context.sharing.unshare(name, share.kind, share.subject, caller.person))


def _keys(context: VerbContext, caller: Caller, _: str, __: Nothing) -> tuple[Key, ...]:
    return _shown(PersonKeys(context.database).of(caller.person))


def _add_keys(context: VerbContext, caller: Caller, _: str, new: NewKeys) -> tuple[Key, ...]:
    return _shown(PersonKeys(context.database).add(caller.person, read_keys(new.keys, "what was sent")))


def _remove_key(context: VerbContext, caller: Caller, _: str, old: OldKey) -> tuple[Key, ...]:
    return _shown(PersonKeys(context.database).remove(caller.person, [old.key]))


def _shown(keys: tuple[PersonKey, ...]) -> tuple[Key, ...]:
    return tuple(Key(registered.key.comment, registered.key.fingerprint, registered.added) for registered in keys)


_KEYS = tuple[Key, ...]
VERBS = (
    Verb(
        "shares",
        "GET",
        f"{ONE}/shares",
        Scope.read,
        "List the people, groups and links that a session is shared with.",
        _shares,
        gives=tuple[Shared, ...],
    ),
    Verb(
        "share",
        "POST",
        f"{ONE}/shares",
        Scope.access,
        "Let others use a session. They act as its user, with its owner's files and logins.",
        _share,
        ToShare,
        Given,
        button="Share",
        shown=EVERY,
    ),
    Verb(
        "unshare",
        "POST",
        f"{ONE}/unshare",
        Scope.access,
        "End a share: open connections of these people close within two seconds.",
        _unshare,
        ToEnd,
        Ended,
    ),
    Verb("keys", "GET", "/keys", Scope.read, "List one's public keys for ssh.", _keys, gives=_KEYS),
    Verb(
        "add-keys",
        "POST",
        "/keys",
        Scope.access,
        "Add public keys: each opens all sessions that one may use, by ssh.",
        _add_keys,
        NewKeys,
        _KEYS,
    ),
    Verb(
        "remove-key",
        "POST",
        "/keys/remove",
        Scope.access,
        "Remove a key: nobody comes in with it any more.",
        _remove_key,
        OldKey,
        _KEYS,
    ),
)
