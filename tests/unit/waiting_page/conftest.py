"""A waiting page that knows one session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.gateway import routes
from flows.sessions.model import PREFIX, HomeRef, Session, TokenRef
from flows.sessions.store import Store
from flows.waiting_page.app import WaitingPage


@pytest.fixture
def ada() -> Session:
    return Session(
        *("ada", "jupyter-minimal-deb12-py311", "2026a", f"sha256:{'a' * 64}", 200_000),
        home=HomeRef("/homes/ada"),
        token_ref=TokenRef("/sessions/ada/token"),
        access=Access(port=8888, health="/api"),
        environment={PREFIX: routes.path("ada")},
    )


@pytest.fixture
def waiting_page(settings: Settings, ada: Session) -> WaitingPage:
    """A waiting page that knows ada, which nobody has asked to run."""
    settings.folder()
    database = open_database(settings.database)
    Store(database).add("ada", lambda uid: replace(ada, uid=uid), uids=Span(first=200_000, last=200_001))
    return WaitingPage(settings, database)
