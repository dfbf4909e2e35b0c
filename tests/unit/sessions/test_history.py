"""The history is a chain: a line that is changed, or taken out of it, shows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.sessions.events import Kind
from flows.sessions.history import History


@pytest.fixture
def database(settings: Settings) -> Engine:
    return open_database(settings.database)


def test_an_empty_history_is_whole(database: Engine) -> None:
    assert History(database).events() == () and not History(database).broken()


def test_events_are_found_by_what_they_are_about(database: Engine) -> None:
    history = History(database)
    history.add(Kind.noticed, session="ada", image="sha256:a", what="chat")
    history.add(Kind.paused, image="sha256:a", by="root")
    assert [event.number for event in history.events()] == [1, 2] and history.length() == 2
    assert [event.kind for event in history.events(session="ada")] == [Kind.noticed]
    assert [event.by for event in history.events(image="sha256:a", kinds=[Kind.paused])] == ["root"]
    assert not history.broken()


def test_many_write_at_once_and_the_chain_is_whole(database: Engine) -> None:
    history = History(database)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: history.add(Kind.noticed, session=f"s{n}"), range(40)))
    assert history.length() == 40 and not history.broken()


@pytest.mark.parametrize(
    ("done", "says"),
    [
        ("UPDATE events SET what = 'nothing' WHERE number = 2", "event 2 was changed"),
        ("DELETE FROM events WHERE number = 2", "event 2 is missing"),
        ("DELETE FROM events WHERE number = 3", "3 events were written, and 2 are there"),
        ("UPDATE events SET digest = 'x' WHERE number = 3", "event 3 was changed"),
    ],
)
def test_what_is_changed_shows(database: Engine, done: str, says: str) -> None:
    history = History(database)
    for name in ("ada", "bob", "cyd"):
        history.add(Kind.noticed, session=name, what="chat")
    with database.begin() as connection:
        connection.execute(text(done))
    assert says in history.broken()
