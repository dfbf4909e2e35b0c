"""Sharing of sessions: with a person, with a group, or by a code. The Hub holds the shares; Refit adds their ends.

Each function takes the person who acts. `Sharing.check_may_share` says whether that person may; the operator of the
machine may always, and isn't asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine

from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Entitlements, Grant, Kind, Role, Share
from flows.sessions.people.rights import Heard
from flows.sessions.people.share_records import Grants
from flows.web.authorizer.rights_watch import heard
from flows.web.people.client import HubClient, HubError
from flows.web.people.servers import Servers

# A code works so long where no end was chosen; the share that it becomes has none then.
CODE_TIME = timedelta(days=7)
# The Hub takes no code that lasts shorter, nor one that lasts longer.
_SHORTEST, _LONGEST = timedelta(minutes=1), timedelta(days=365)


@dataclass(frozen=True)
class Shared:
    """A share of a session, as people are shown it.

    Attributes:
        kind: person, group or code.
        subject: name of the person or the group, or the Hub's number of the code.
        by: the person who shared it; empty: it was made at the Hub itself.
        at: since when; none: as `by`.
        until: when it ends by itself; none: it doesn't.
        came_in: when that person was seen in the session last; none: never, or it is no person.
    """

    kind: Kind
    subject: str
    by: str = ""
    at: datetime | None = None
    until: datetime | None = None
    came_in: datetime | None = None


class Sharing:
    """Shares of the sessions of these settings."""

    def __init__(self, settings: Settings, database: Engine, servers: Servers, hub: HubClient) -> None:
        self._settings, self._database, self._servers, self._hub = settings, database, servers, hub
        self._grants = Grants(database)

    @classmethod
    def open(cls, settings: Settings) -> Sharing:
        """Those of these settings."""
        return cls(settings, open_database(settings.database), Servers(settings), HubClient(settings))

    def session(self, name: str) -> str:
        """The name of a session that is called by it, or by its owner's server, as in `ada/notes`.

        Raises:
            RefitError: there is none.
        """
        person, slash, server = name.rpartition("/")
        if slash and (session := self._servers.session(person, server)):
            return session.name
        if slash:
            raise RefitError(f"{person} has no server {server!r}.", hint="`refit session list` shows all sessions.")
        return self._servers.sessions.store.session(name).name

    def url(self, session: str) -> str:
        """Where people open a session."""
        return self._servers.sessions.url(self._servers.sessions.store.session(session))

    def check_may_share(self, person: str, session: str) -> None:
        """Return if somebody may share a session: its owner may, and administrators.

        Raises:
            RefitError: they may not.
        """
        if self._entitlements().may_use(person, session).role not in (Role.owner, Role.admin):
            raise RefitError(
                f"{person} may not share the session {session}.",
                why="It is not theirs.",
                hint="its owner can share it.",
            )

    def share(self, session: str, kind: Kind, subject: str, by: str, until: datetime | None = None) -> Grant:
        """Share a session with a person or a group; one that is shared with them gets another end.

        Args:
            session: its name.
            kind: person or group.
            subject: name of that person or group.
            by: the person who shares it.
            until: when the share ends by itself; none: it doesn't.

        Raises:
            RefitError: the session has no owner, the subject isn't known, or the Hub refuses.
        """
        owner, server = self._server(session)
        self._check_subject(kind, subject, owner)
        _check_end(until)
        # The record comes first: a share without one would never end.
        grant = self._grants.record(Share(session, owner, kind, subject), server, by, until)
        self._hub.share(owner, server, kind.value, subject)
        return grant

    def code(self, session: str, by: str, until: datetime | None = None) -> tuple[Grant, str]:
        """A code that becomes a share with the first person who accepts it; with it comes the link to give away.

        Args:
            session: its name.
            by: the person who shares it.
            until: when code and share end by themselves; none: the share doesn't, and the code after `CODE_TIME`.

        Raises:
            RefitError: the session has no owner, or the Hub refuses.
        """
        owner, server = self._server(session)
        _check_end(until)
        lasting = min(until - now(), _LONGEST) if until else CODE_TIME
        number, path = self._hub.share_code(owner, server, max(lasting, _SHORTEST))
        grant = self._grants.record(Share(session, owner, Kind.code, number), server, by, until)
        return grant, f"{self._settings.public_url}{path}"

    def shares(self, session: str) -> tuple[Shared, ...]:
        """The shares of a session that hold, codes that nobody has accepted among them.

        Raises:
            RefitError: there is no such session, or the Hub doesn't answer.
        """
        self._servers.sessions.store.session(session)
        entitlements, seen = self._entitlements(), self._grants.seen(session)
        return tuple(_shown(share, entitlements.grant_of(share), seen) for share in entitlements.shares_of(session))

    def unshare(self, session: str, kind: Kind, subject: str, by: str) -> bool:
        """End a share: open connections close within two seconds. Returns whether there was one.

        Raises:
            RefitError: there is no such session, or the Hub doesn't answer.
        """
        owner, server = self._server(session)
        share = Share(session, owner, kind, subject)
        held = share in self._heard().rights.shares
        self._hub.unshare(owner, server, kind.value, subject)
        return self._grants.end(share, by) or held

    def _server(self, session: str) -> tuple[str, str]:
        """Owner and name of the server; the Hub knows it from now on, if it didn't."""
        self._servers.sessions.store.session(session)
        for owner, own in self._servers.all().items():
            for server, each in own.items():
                if each.name == session:
                    self._hub.note(owner, server, None)
                    return owner, server
        raise RefitError(
            f"The session {session} can't be shared.",
            why="It has no owner, so that it is no server of the Hub.",
            hint=f"`refit session owner {session} PERSON` gives it one.",
        )

    def _check_subject(self, kind: Kind, subject: str, owner: str) -> None:
        if subject == owner and kind is Kind.person:
            raise RefitError(f"The session is {owner}'s already.", hint="share it with somebody else.")
        if not self._hub.has(kind.value, subject):
            hint = "`refit user list` shows who has an account." if kind is Kind.person else "The Hub has the groups."
            raise RefitError(f"The Hub has no {kind.value} called {subject!r}.", hint=hint)

    def _entitlements(self) -> Entitlements:
        return rights.entitlements(self._settings, self._database, self._heard())

    def _heard(self) -> Heard:
        answer = self._hub.rights()
        if answer is None:
            raise HubError("The Hub doesn't say who may do what.", hint="`refit status` names its log.")
        return heard(answer, self._servers.all())


def _check_end(until: datetime | None) -> None:
    if until is not None and until <= now():
        raise RefitError("The share would have ended already.", hint="choose an end in the future.")


def _shown(share: Share, grant: Grant | None, seen: dict[str, datetime]) -> Shared:
    came_in = seen.get(share.subject) if share.kind is Kind.person else None
    if grant is None:
        return Shared(share.kind, share.subject, came_in=came_in)
    return Shared(share.kind, share.subject, grant.by, grant.at, grant.until, came_in)
