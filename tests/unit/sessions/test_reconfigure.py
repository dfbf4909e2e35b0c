"""Changes to a session that is there; and that its volumes go with its home, wherever that goes."""

from __future__ import annotations

import pytest

from flows.core.errors import RefitError
from flows.migrations.move_steps import State
from flows.sessions import reconfigure
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.volumes import Wanted
from flows.sessions.model import Running, Session
from tests.support.simulated.fleet import Fleet
from tests.support.simulated.world import Image, Point

DATA = Wanted("data", "/data")


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    """A session that runs, and was given a volume while it was stopped."""
    ada = sessions.add(1, sessions.image("old"))
    with sessions.world.person():
        with pytest.raises(RefitError, match="runs"):
            reconfigure.add_volumes(sessions.sessions, ada.name, [DATA])
        sessions.sessions.stop(ada.name)
        reconfigure.add_volumes(sessions.sessions, ada.name, [DATA])
        return sessions.sessions.start(ada.name)


def test_a_stopped_session_gets_a_volume_with_its_next_container(sessions: Fleet, ada: Session) -> None:
    assert [volume.name for volume in ada.volumes] == ["data"]
    assert sessions.sessions.store.session(ada.name) == ada
    (box,) = sessions.world.of(ada.name)
    assert box.session == ada and box.running is Running.running


@pytest.mark.parametrize("again", [DATA, Wanted("more", "/data"), Wanted("more", "/data/deeper")])
def test_a_volume_that_a_session_has_it_isnt_given_again(sessions: Fleet, ada: Session, again: Wanted) -> None:
    with sessions.world.person():
        sessions.sessions.stop(ada.name)
        with pytest.raises(RefitError):
            reconfigure.add_volumes(sessions.sessions, ada.name, [again])
    assert sessions.sessions.store.session(ada.name) == ada


@pytest.mark.slow
def test_a_move_that_fails_brings_the_volume_back_with_the_home(sessions: Fleet, ada: Session) -> None:
    homes, data, spoiled = sessions.world.homes, ada.volumes[0].ref, ["spoiled"]
    homes[data]["rows"] = "1"

    def meanwhile(point: Point) -> None:
        if (point.verb, point.when) == ("start", "after") and spoiled:  # the new one; the old one starts after it
            homes[data]["rows"] = spoiled.pop()

    sessions.world.meanwhile = meanwhile
    result = sessions.executor().carry_out(sessions.to(ada, sessions.image("bad", Image(lives=False))))
    assert result.state is State.rolled_back
    assert not spoiled and homes[data] == {"rows": "1"}
    assert not sessions.world.snapshots


@pytest.mark.slow
def test_a_volume_goes_when_no_session_has_it(sessions: Fleet, ada: Session) -> None:
    name, volume = f"{ada.name}/data", ada.volumes[0].ref
    with pytest.raises(RefitError, match=f"{ada.name} has it"):
        reconfigure.remove_volume(sessions.sessions, name, volume)
    with sessions.world.person():
        sessions.sessions.remove(ada.name)
    reconfigure.remove_volume(sessions.sessions, name, volume)
    assert volume not in sessions.world.homes and str(ada.home) in sessions.world.homes


@pytest.mark.slow
def test_where_there_is_no_pool_no_home_gets_into_it(sessions: Fleet, ada: Session) -> None:
    with pytest.raises(RefitError, match="no pool"):
        reconfigure.put_into_pool(sessions.sessions, LocalHomes(sessions.settings), ada.name)
