"""All sessions at a glance are those on record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.sessions import overview
from flows.sessions.containers.podman import Podman
from flows.sessions.model import Container, Running
from flows.sessions.overview import Status
from flows.sessions.store import Store
from tests.support.pods import SESSION


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    yield Store(open_database(settings.database))


def test_without_sessions_nobody_is_asked(settings: Settings, store: Store) -> None:
    assert overview.glance_at_all(settings) == ((), {})


def test_a_glance_gives_what_the_records_and_the_engine_say(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.bring_back(SESSION, should_run=True)
    box = Container(SESSION.container, SESSION.name, SESSION.generation, SESSION.image, Running.running)
    monkeypatch.setattr(Podman, "containers", lambda _: (box,))
    monkeypatch.setattr(Podman, "address", lambda *_: ("10.0.0.7", 8888))
    seen = overview.glance_at_all(settings)
    assert seen == ((Status(SESSION, Running.running, True),), {SESSION.name: "http://10.0.0.7:8888"})


def test_a_database_that_nobody_has_opened_is_left_to_those_who_make_it(settings: Settings) -> None:
    assert overview.glance_at_all(settings) is None
