"""Snapshots that moves have kept, on simulated sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.core.errors import RefitError, UnknownName
from flows.migrations.move_steps import State
from flows.migrations.snapshots.snapshots_of_moves import drop, kept, take_back
from flows.sessions.model import Session
from tests.support.simulated.fleet import Fleet
from tests.support.simulated.upsets import IMAGES
from tests.support.simulated.world import Point


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    """A session whose home a new image has spoiled while a person was in it, so that it was left as it is."""
    ada = sessions.add(1, sessions.image("old"))

    def meanwhile(point: Point) -> None:
        if (point.verb, point.when) == ("ready", "before"):
            for box in sessions.world.of(ada.name):
                box.used = box.session.generation > ada.generation

    sessions.world.meanwhile = meanwhile
    spoils = IMAGES["writes into the home"]
    result = sessions.executor().carry_out(sessions.to(ada, sessions.image("bad", replace(spoils, cell="41"))))
    sessions.world.meanwhile = lambda _: None
    assert result.state is State.rolled_back and "left so" in result.reason
    return ada


def home(sessions: Fleet, session: Session) -> dict[str, str]:
    return dict(sessions.world.homes[str(session.home)])


@pytest.mark.slow
def test_what_was_kept_is_listed_taken_back_and_dropped(sessions: Fleet, ada: Session) -> None:
    [one] = kept(sessions.sessions, sessions.journal)
    assert (one.session, one.id) == (ada.name, sessions.journal.history(ada.name)[-1].id) and "left so" in one.why
    with pytest.raises(RefitError, match="runs"):
        take_back(sessions.sessions, sessions.journal, ada.name, one.id)
    assert "new" in home(sessions, ada)
    with sessions.world.person():
        sessions.sessions.stop(ada.name)
        take_back(sessions.sessions, sessions.journal, ada.name, one.id)
        assert "new" not in home(sessions, ada) and home(sessions, ada)["work-5-notes"] != "spoiled"
        assert kept(sessions.sessions, sessions.journal, ada.name) == (one,)
        drop(sessions.sessions, sessions.journal, ada.name, one.id)
    assert kept(sessions.sessions, sessions.journal) == ()


@pytest.mark.slow
def test_only_what_is_there_and_what_no_move_is_about_can_be_taken_back(sessions: Fleet, ada: Session) -> None:
    for verb in (take_back, drop):
        with pytest.raises(UnknownName, match="no snapshot 'other'"):
            verb(sessions.sessions, sessions.journal, ada.name, "other")
    assert kept(sessions.sessions, sessions.journal, "bob") == ()
