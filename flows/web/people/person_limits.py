"""Limits of people where they begin and start sessions. The operator's shell has none: it doesn't come here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from flows.core.leases import lease
from flows.core.settings import Settings
from flows.host import tools
from flows.sessions.homes import person_home_limits
from flows.sessions.lifecycle import Sessions
from flows.sessions.people import person_limits, rights
from flows.sessions.people.person_limits import NO_LIMITS, Account, Amounts, Homes
from flows.sessions.store import Store
from flows.web.people.offers import Offer

# Seconds that another session of the same person may take for its image, besides those for its start.
_MORE_SECONDS = 600.0


@dataclass(frozen=True)
class Allowance:
    """Says what people may have, and lets a session begin if that is allowed."""

    settings: Settings
    database: Engine

    def account(self, person: str, groups: Collection[str] | None = None) -> Account:
        """A person's limits, and what they use.

        Args:
            person: with an account at the Hub.
            groups: those that they are in; none: as the Hub has said last.
        """
        store = Store(self.database)
        owners, intents = store.owners(), store.intents()
        used = {
            session.name: self.takes(session.memory, session.cpus, session.gpus, runs=session.name in intents)
            for session in store.sessions()
            if owners.get(session.name) == person
        }
        return Account(self._allowed(person, groups), used)

    def takes(self, memory: int, cpus: float, gpus: int = 0, *, runs: bool = True) -> Amounts:
        """The amounts of a session with these limits of its own (bytes, cores), 0: those of the settings; and GPUs."""
        settings = self.settings
        if settings.in_cluster:
            of_all = round(settings.kubernetes.memory_gb * 1e9), settings.kubernetes.cpus
        else:
            of_all = tools.session_memory(settings), 0.0
        return person_limits.takes(memory or of_all[0], cpus or of_all[1], gpus, runs=runs)

    def of(self, name: str) -> Amounts:
        """The amounts of a session once it runs.

        Raises:
            UnknownName: there is no such session.
        """
        session = Store(self.database).session(name)
        return self.takes(session.memory, session.cpus, session.gpus)

    def homes(self, person: str, groups: Collection[str] | None = None) -> Homes:
        """The homes of a person, and the most that each may take."""
        store = Store(self.database)
        owned = {name for name, owner in store.owners().items() if owner == person}
        of_sessions = owned & {session.name for session in store.sessions()}
        own = person_limits.home(self.settings.person_limits, self.groups_of(person, groups))
        most = Sessions.open(self.settings, self.database).homes.disk_limit(own)
        return Homes(len(owned), len(owned - of_sessions), most)

    def bound_home(self, person: str, session: str, groups: Collection[str] | None = None) -> None:
        """Let the home of a person's session take as much as they may have, from its next start on."""
        person_home_limits.choose(
            self.settings, session, person_limits.home(self.settings.person_limits, self.groups_of(person, groups))
        )

    def why_not_another(self, account: Account, offer: Offer) -> str:
        """Why somebody can't have another session of a profile; empty: they can."""
        refusal = account.refusal(self.takes(offer.memory, offer.cpus, offer.gpus))
        return f"{refusal.what} {refusal.why}" if refusal else ""

    def offered(self, account: Account, offered: Iterable[Offer]) -> tuple[Offer, ...]:
        """The offers to somebody who wants another session, with what is too much for them as not available."""
        return tuple(replace(offer, why_not=offer.why_not or self.why_not_another(account, offer)) for offer in offered)

    def check(self, person: str, amounts: Amounts, session: str = "", groups: Collection[str] | None = None) -> None:
        """Return if a session that takes so much is allowed as it looks now; parameters as of `within`.

        Raises:
            OverLimit: it isn't.
        """
        if refusal := self.account(person, groups).refusal(amounts, session):
            raise refusal

    @contextmanager
    def within(
        self, person: str, amounts: Amounts, session: str = "", groups: Collection[str] | None = None
    ) -> Iterator[None]:
        """Begin a session inside the `with` block, if it is allowed.

        Of two that one person begins at the same time, the second waits until the first is on record. So they never
        both have what is left for one.

        Args:
            person: the owner of the session.
            amounts: the resources that it takes once it runs.
            session: its name; empty: it is a new one.
            groups: those that the person is in; none: as the Hub has said last.

        Raises:
            OverLimit: it is too much.
            LeaseTaken: another session of this person takes too long to start.
        """
        if self._allowed(person, groups) == NO_LIMITS:
            yield
            return
        settings, wait = self.settings, self.settings.ready_timeout_seconds + _MORE_SECONDS
        with lease(self.database, f"limits of {person}", seconds=settings.lease_seconds, wait=wait):
            self.check(person, amounts, session, groups)
            yield

    def _allowed(self, person: str, groups: Collection[str] | None) -> Amounts:
        return person_limits.allowed(self.settings.person_limits, self.groups_of(person, groups))

    def groups_of(self, person: str, groups: Collection[str] | None) -> Collection[str]:
        """The groups of a person: these, or if there are none, as the Hub has said last."""
        if groups is not None:
            return groups
        heard = (rights.last(self.settings).rights.accounts or {}).get(person)
        return heard.groups if heard else ()
