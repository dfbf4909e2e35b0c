"""The authorizer's knowledge of people's rights: heard from the Hub as it changes, and kept while the Hub is away.

Somebody who may not use a session any more is out of it within a second: their open connections are closed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from flows.core.database import DataVersion, now
from flows.core.settings import Settings
from flows.gateway.proxy import Gateway, Visit
from flows.publishing.own_profiles import OwnProfiles
from flows.sessions.model import Session
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Entitlements, Kind, Rights, Share
from flows.sessions.people.rights import Heard
from flows.sessions.people.share_records import Grants
from flows.web.people import own_offers, share_expiry
from flows.web.people.client import HubClient
from flows.web.people.servers import Servers

logger = logging.getLogger("refit.authorizer")

# Seconds for which an answer of the database is used again.
_FRESH = 0.5
_WAIT = 20.0
# Seconds for the Hub's answer after that.
_LATE = 5.0

Owned = Mapping[str, Mapping[str, Session]]


def heard(answer: Mapping[str, Any], servers: Owned, before: Rights | None = None) -> Heard:
    """Rights to sessions, from the Hub's answer about its servers. Pure.

    Args:
        answer: the Hub's.
        servers: person → name of the server → session.
        before: rights of an earlier look at this same answer, whose accounts needn't be read once more.
    """
    accounts = (before and before.accounts) or rights.accounts_from(answer["accounts"])
    groups = before.groups if before else rights.members(accounts)
    named = {(owner, name): session.name for owner, own in servers.items() for name, session in own.items()}
    shares = frozenset(
        Share(named[owner, server], owner, Kind(kind), subject)
        for owner, server, kind, subject in answer["shares"]
        if (owner, server) in named
    )
    return Heard(Rights(accounts, shares, groups), {named[owner, name]: name for owner, name in named})


def is_older(version: str, other: str) -> bool:
    """Whether a version of the Hub's rights is from before another one of the same run of the Hub. Pure."""
    (begun, _, count), (begun_other, _, count_other) = version.partition("."), other.partition(".")
    return begun == begun_other and count.isdecimal() and count_other.isdecimal() and int(count) < int(count_other)


def to_be_ended(
    visits: Iterable[Visit], entitlements: Entitlements, owners: Mapping[str, str] | None = None
) -> tuple[Visit, ...]:
    """The visits of people who may not use the session any more, or whose login has ended. Pure.

    Args:
        visits: those that there are.
        entitlements: the rights now.
        owners: session → whose it was at the last look. Somebody who has handed one over comes in as a guest, if at
            all, and is to be told so.
    """
    before, after = owners or {}, entitlements.owners
    return tuple(
        visit
        for visit in visits
        if not entitlements.is_logged_in(visit.person, visit.login)
        or not entitlements.may_use(visit.person, visit.session)
        or (visit.person == before.get(visit.session) != after[visit.session])
    )


class RightsWatch:
    """Knows who may use which session."""

    def __init__(self, settings: Settings, database: Engine, servers: Servers, hub: HubClient) -> None:
        self._settings, self._database, self._servers, self._hub = settings, database, servers, hub
        self._grants, self._gateway, self._lock = Grants(database), Gateway(settings), threading.Lock()
        self._told: Mapping[str, Any] = {}
        self._read_before: Rights | None = None  # of that answer
        self._heard = rights.last(settings)
        self._accounts = self.accounts  # at the last look at offers
        self._seen: tuple[float, Entitlements | None] = (0.0, None)
        self._followed, self._looked = -math.inf, False
        self._owners: Mapping[str, str] = {}
        self._data_version = DataVersion(database)
        # The last answer, after the two versions from which it was made.
        self._made: tuple[object, object, Entitlements | None] = (None, None, None)

    @property
    def version(self) -> str:
        """The Hub's version of what it told last; empty: it has told nothing yet."""
        return str(self._told.get("version", ""))

    @property
    def accounts(self) -> frozenset[str]:
        """The people who have an account."""
        return frozenset(self._heard.rights.accounts or ())

    def now(self, *, fresh: bool = False) -> Entitlements:
        """The rights to sessions at this moment.

        Args:
            fresh: an answer of a moment ago isn't good enough.
        """
        with self._lock:
            at, entitlements = self._seen
            if entitlements is None or fresh or at < time.monotonic() - _FRESH:
                at, entitlements = time.monotonic(), self._read()
                self._seen = at, entitlements
            return entitlements

    def refresh(self) -> None:
        """Ask the Hub now.

        Raises:
            HubError: it doesn't answer.
        """
        self._take(self._hub.rights())

    def follow(self) -> None:
        """Return as soon as something has changed at the Hub, or nothing has for a while; changes are in force then.

        Raises:
            HubError: the Hub doesn't answer.
        """
        try:
            self._take(self._hub.rights(self.version, _WAIT))
        except BaseException:
            self._followed = -math.inf
            raise
        self._followed = time.monotonic()

    @property
    def hears(self) -> bool:
        """Whether the Hub tells of changes as they come."""
        return time.monotonic() < self._followed + _WAIT + _LATE

    def end_visits(self) -> None:
        """Close the connections of people who may not use a session any more.

        The gateway hears that all others were looked at only as long as the Hub tells of changes: else it asks about
        them again within seconds.
        """
        looked, self._looked = self._looked, False
        visits, hears = self._gateway.visits(looked=looked), self.hears
        if not visits:
            return
        entitlements = self.now(fresh=True)
        ended = to_be_ended(visits, entitlements, self._owners)
        closed = self._gateway.end_visits(ended) if ended else 0
        if ended:
            logger.warning("%s connections were closed of people who may not use their session any more", closed)
        self._owners, self._looked = entitlements.owners, hears and closed is not None
        for visit in ended:
            if not entitlements.may_use(visit.person, visit.session):
                self._grants.forget_told(visit.session, visit.person)

    def end_shares(self) -> None:
        """End the shares whose time is over; not before the Hub has told what holds.

        Raises:
            HubError: the Hub doesn't answer, or refuses.
        """
        if self._told:
            share_expiry.end_over(self.now(fresh=True), self._grants, self._hub)

    def end_offers(self) -> None:
        """End the offers of people's own profiles that hold no more; not before the Hub has told of groups."""
        if self._told:
            present = self.now().rights
            accounts = frozenset(present.accounts or ())
            own_offers.end_over(OwnProfiles(self._database), present, self._accounts - accounts)
            self._accounts = accounts

    def _take(self, answer: Mapping[str, Any] | None) -> None:
        if answer is not None:
            with self._lock:
                if is_older(str(answer.get("version", "")), self.version):  # asked before, and heard after it
                    return
                self._told, self._seen, self._read_before = answer, (0.0, None), None
            self.now()

    def _read(self) -> Entitlements:
        """The rights at this moment; of an answer to which nothing has been added since, only the time is another."""
        version, hub = self._data_version.now(), self._told  # before anything is read
        version_before, hub_before, made = self._made
        if made is not None and version == version_before and hub is hub_before:
            return replace(made, at=now())
        made = self._read_all()
        self._made = version, hub, made
        return made

    def _read_all(self) -> Entitlements:
        current = heard(self._told, self._servers.all(), self._read_before) if self._told else self._heard
        self._read_before = current.rights if self._told else None
        if current != self._heard:
            rights.keep(self._settings, current)
            self._heard = current
        return rights.entitlements(self._settings, self._database, current)
