"""All sessions that others own and that the settings name, whoever keeps them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import cached_property

from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.sessions import engines
from flows.sessions.activity.probes import Watch
from flows.sessions.activity.seen import Seen
from flows.sessions.model import Session
from flows.sessions.others.model import Keeper, Owned, owner_of

with lazily(globals()):
    from flows.sessions.others.hub_servers import HubServers
    from flows.sessions.others.notebooks import Notebooks

logger = logging.getLogger("refit.sessions")


class Others:
    """The sessions of all owners."""

    def __init__(self, settings: Settings) -> None:
        """Nobody is asked yet."""
        self._settings = settings
        self._last: dict[str, Session] = {}

    @cached_property
    def _keepers(self) -> dict[str, Keeper]:
        others = self._settings.others
        keepers: list[Keeper] = [Notebooks(self._settings)] if others.notebooks else []
        keepers += [HubServers(self._settings)] if others.hub.api else []
        return {keeper.kind: keeper for keeper in keepers}

    def see(self, *, besides: Collection[str] = ()) -> tuple[tuple[Owned, ...], tuple[RefitError, ...]]:
        """All of their sessions by name, and why those of an owner can't be seen.

        Args:
            besides: names that sessions of Refit's own have; these win.
        """
        seen, problems = list[Owned](), list[RefitError]()
        for keeper in self._keepers.values():
            try:
                seen += keeper.see()
            except RefitError as error:  # of others there is nothing to be seen then, and one's own go on
                problems.append(error)
        kept = sorted(
            (owned for owned in seen if owned.session.name not in besides), key=lambda owned: owned.session.name
        )
        self._last = {owned.session.name: owned.session for owned in kept}
        return tuple(kept), tuple(problems)

    def named(self, name: str) -> Owned | None:
        """The session of that name; none: there is none, as far as its owner can be asked."""
        if self._keepers and name not in self._last:
            self.see()
        session = self._last.get(name)
        return self.of(session).find(session) if session else None

    def terms(self, owned: Owned) -> str:
        """The owner of a session, and all that has to be known before it is moved, in words."""
        sentences = (f"it belongs to the {owner_of(owned.session)}", self.of(owned.session).lacks, owned.told)
        return "; ".join(filter(None, sentences))

    def of(self, session: Session) -> Keeper:
        """The keeper of a session.

        Raises:
            RefitError: the settings name it no more.
        """
        kind = session.owned_by.partition("/")[0]
        if kind not in self._keepers:
            raise RefitError(
                f"Refit no longer manages the {owner_of(session)}.",
                hint="write its owner into `others` of settings.yaml again until its moves have ended.",
            )
        return self._keepers[kind]


def look_at_others(settings: Settings, others: Others, sessions: Collection[Session]) -> tuple[Seen, ...]:
    """Look at sessions of others that run, some at the same time; those that can't be looked at are busy."""
    if not sessions:
        return ()
    watch = Watch(settings, engines.engine(settings))

    def look(session: Session) -> Seen:
        return watch.look_by(session, lambda: others.of(session).look(session))

    return tuple(at_once(look, sessions))
