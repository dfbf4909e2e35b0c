"""Rights to use sessions, by the Hub's groups and by Refit's own records. Pure.

The Hub's shares, groups and roles are the truth. Refit adds until when a share holds, and its record of owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

_SCOPE = "access:servers"


class Role(StrEnum):
    """As what a person comes into a session."""

    owner = "owner"
    shared = "shared"
    admin = "admin"
    none = "none"


class Kind(StrEnum):
    """With whom a session is shared."""

    person = "person"
    group = "group"
    code = "code"


@dataclass(frozen=True)
class Account:
    """A person's account at the Hub.

    Attributes:
        name: with which they log in.
        groups: those that they are in.
        scopes: the scopes of their roles at the Hub, e.g. `access:servers!group=class`; shares are not among them.
        logins: the Hub's tokens of this person, given to browsers and programs → when each ends by itself; none: never.
    """

    name: str
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    logins: Mapping[str, datetime | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """A share of the Hub, of a server that is a session.

    Attributes:
        session: which.
        owner: its owner when it was shared; the share ends when the session is another's.
        kind: person, group or code.
        subject: name of the person or the group, or the Hub's number of the code.
    """

    session: str
    owner: str
    kind: Kind
    subject: str


@dataclass(frozen=True)
class Grant:
    """Refit's record of a share.

    Attributes:
        number: 1, 2, …
        session: which.
        owner: the owner of the session then.
        server: name of the owner's server in the Hub.
        kind: person, group or code.
        subject: as in `Share`.
        by: the person who shared it.
        at: since when.
        until: when it ends by itself; none: it doesn't.
        ended: when it ended; none: it holds.
    """

    number: int
    session: str
    owner: str
    server: str
    kind: Kind
    subject: str
    by: str
    at: datetime
    until: datetime | None = None
    ended: datetime | None = None

    @property
    def share(self) -> Share:
        """The share that this is the record of."""
        return Share(self.session, self.owner, self.kind, self.subject)

    def is_due(self, at: datetime) -> bool:
        """Whether its time is over."""
        return self.until is not None and self.until <= at


@dataclass(frozen=True)
class Rights:
    """Accounts, shares and groups, by the Hub.

    Attributes:
        accounts: name → account; none: there is no Hub, so that each name is somebody's.
        shares: all that hold at the Hub.
        groups: name of a group → who is in it.
    """

    accounts: Mapping[str, Account] | None = None
    shares: frozenset[Share] = frozenset()
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Access:
    """The rights of a person to a session.

    Attributes:
        role: as what they come in.
        until: when that ends by itself; none: it doesn't, as far as is known.
        by: for a share, the person who gave it.
        via: for a share with a group, that group.
    """

    role: Role
    until: datetime | None = None
    by: str = ""
    via: str = ""

    def __bool__(self) -> bool:
        """Whether they may use it."""
        return self.role is not Role.none


NO_ACCESS = Access(Role.none)


@dataclass(frozen=True)
class Entitlements:
    """Answers who may use which session at a moment.

    Attributes:
        rights: the rights that the Hub told of.
        owners: session → the person whose it is; sessions without an owner are missing.
        grants: Refit's records that have not ended.
        at: the moment.
        servers: session → name of its owner's server in the Hub.
    """

    rights: Rights
    owners: Mapping[str, str]
    grants: tuple[Grant, ...]
    at: datetime
    servers: Mapping[str, str] = field(default_factory=dict)

    def has_account(self, person: str) -> bool:
        """Whether somebody of that name may log in."""
        return bool(person) and (self.rights.accounts is None or person in self.rights.accounts)

    def is_logged_in(self, person: str, login: str) -> bool:
        """Whether a login of that person holds still: a logout, a removal and its time end it."""
        account = (self.rights.accounts or {}).get(person)
        if account is None or login not in account.logins:
            return False
        until = account.logins[login]
        return until is None or self.at < until

    def may_use(self, person: str, session: str) -> Access:
        """As what a person may use a session; a session that isn't on record is nobody's."""
        if not self.has_account(person) or session not in self.owners:
            return NO_ACCESS
        if self.owners[session] == person:
            return Access(Role.owner)
        if access := self._shared(person, session):
            return access
        return Access(Role.admin) if self._administers(person, session) else NO_ACCESS

    def usable_by(self, person: str) -> dict[str, Access]:
        """The sessions that a person may use, and as what."""
        accesses = {session: self.may_use(person, session) for session in self.owners}
        return {session: access for session, access in accesses.items() if access}

    def people_of(self, session: str) -> dict[str, Access]:
        """The people who may use a session, its owner among them, and as what."""
        names = self.rights.accounts if self.rights.accounts is not None else filter(None, [self.owners.get(session)])
        accesses = {person: self.may_use(person, session) for person in names}
        return {person: access for person, access in accesses.items() if access}

    def shares_of(self, session: str) -> tuple[Share, ...]:
        """The shares of a session that hold, codes among them."""
        return tuple(sorted(filter(self._holds, self._of(session)), key=lambda share: (share.kind, share.subject)))

    def grant_of(self, share: Share) -> Grant | None:
        """Refit's record of a share; none: it was made at the Hub, and hasn't been seen before."""
        return next((grant for grant in self.grants if grant.share == share and grant.ended is None), None)

    def _of(self, session: str) -> Iterable[Share]:
        owner = self.owners.get(session)
        return (share for share in self.rights.shares if (share.session, share.owner) == (session, owner))

    def _holds(self, share: Share) -> bool:
        grant = self.grant_of(share)
        return grant is None or not grant.is_due(self.at)

    def _shared(self, person: str, session: str) -> Access:
        """The share that lasts longest; one with the person comes before one with a group."""
        mine = [share for share in self._of(session) if self._reaches(share, person) and self._holds(share)]
        accesses = [self._access(share) for share in sorted(mine, key=lambda share: share.kind is Kind.group)]
        endless = [access for access in accesses if access.until is None]
        longest = max(accesses, key=lambda access: access.until or self.at, default=NO_ACCESS)
        return endless[0] if endless else longest

    def _reaches(self, share: Share, person: str) -> bool:
        if share.kind is Kind.group:
            return person in self.rights.groups.get(share.subject, ())
        return share.kind is Kind.person and share.subject == person

    def _access(self, share: Share) -> Access:
        grant = self.grant_of(share)
        via = share.subject if share.kind is Kind.group else ""
        return Access(Role.shared, grant.until if grant else None, grant.by if grant else share.owner, via)

    def _administers(self, person: str, session: str) -> bool:
        account = (self.rights.accounts or {}).get(person)
        return account is not None and self.is_reached(session, account.scopes)

    def is_reached(self, session: str, scopes: Iterable[str]) -> bool:
        """Whether scopes of the Hub let somebody reach the server that is this session."""
        if (owner := self.owners.get(session)) is None:
            return False
        reached = {"", f"user={owner}", f"server={owner}/{self.servers.get(session, '')}"}
        reached |= {f"group={group}" for group, members in self.rights.groups.items() if owner in members}
        return any(_is_access(scope, reached) for scope in scopes)


def _is_access(scope: str, reached: Iterable[str]) -> bool:
    base, _, of = scope.partition("!")
    return base == _SCOPE and of in reached


def ended(before: Entitlements, after: Entitlements, pairs: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Those of the pairs of person and session that could be used before, and can't any more."""
    return frozenset(pair for pair in pairs if before.may_use(*pair) and not after.may_use(*pair))
