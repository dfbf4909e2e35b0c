"""Sessions whose homes are real, in a pool or in folders, and whose containers nobody asks for."""

from __future__ import annotations

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.sessions.homes.home import LocalHomes
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session, TokenRef
from flows.sessions.store import Store
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.world import World


def opened(settings: Settings) -> Sessions:
    """Sessions whose homes are real and whose containers nobody asks for."""
    store = Store(open_database(settings.database))
    return Sessions(settings, SimulatedEngine(World()), LocalHomes(settings), store)


def added(sessions: Sessions, name: str = "ada") -> Session:
    def make(uid: int) -> Session:
        return Session(
            name, "p", "2026a", "sha256:0", uid, sessions.homes.make(name, uid), TokenRef("/token"), Access()
        )

    return sessions.store.add(name, make, uids=sessions._settings.session_uids)
