"""Containers that sessions had before they moved, on simulated sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from flows.core.database import now
from flows.migrations.move_steps import State
from flows.migrations.steps.previous_containers import clear, had, outlived
from flows.migrations.switch_profile import go_back
from flows.sessions.model import Running, Session
from flows.sessions.recovery import without_record
from tests.support.simulated.fleet import ACCESS, LATE, Fleet, fleet
from tests.support.simulated.upsets import IMAGES

pytestmark = pytest.mark.slow

DAY = 24.0


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "home", keep_hours=DAY) as simulated, simulated.in_charge():
        yield simulated


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    """A session that has moved twice, as it was before the second time."""
    before = move(sessions, sessions.add(1, sessions.image("first"), LATE).name, "old")
    move(sessions, before.name, "new")
    return before


def move(sessions: Fleet, name: str, image: str) -> Session:
    before = sessions.sessions.store.session(name)
    assert sessions.executor().carry_out(sessions.to(before, sessions.image(image))).moved
    return sessions.sessions.store.session(name)


def generations(sessions: Fleet, name: str) -> dict[int, Running]:
    return {box.session.generation: box.running for box in sessions.world.of(name)}


def test_who_goes_back_is_in_the_container_that_they_had(sessions: Fleet, ada: Session) -> None:
    assert generations(sessions, ada.name) == {2: Running.stopped, 3: Running.running}
    own = sessions.world.boxes[ada.container]
    with sessions.world.person():
        assert go_back(sessions.settings, ada.name, force=True).moved
    assert sessions.sessions.store.session(ada.name) == ada
    assert sessions.world.boxes[ada.container] is own  # with all that was installed in it
    assert generations(sessions, ada.name) == {2: Running.running, 3: Running.stopped}
    assert not sessions.world.lost(ada, ("/.cache/",))
    with sessions.world.person():
        assert go_back(sessions.settings, ada.name, force=True).moved  # and forth, in a new one
    assert generations(sessions, ada.name) == {2: Running.stopped, 3: Running.running}


def test_a_way_back_that_fails_leaves_the_container_for_another_try(sessions: Fleet, ada: Session) -> None:
    sessions.world.images[ada.image] = IMAGES["never ready"]
    with sessions.world.person():
        assert go_back(sessions.settings, ada.name, force=True).state is State.rolled_back
        assert generations(sessions, ada.name) == {2: Running.stopped, 3: Running.running}
        sessions.world.images[ada.image] = IMAGES["good"]
        assert go_back(sessions.settings, ada.name, force=True).moved
    assert sessions.sessions.store.session(ada.name) == ada


def test_only_the_last_one_is_kept_and_not_for_ever(sessions: Fleet, ada: Session) -> None:
    move(sessions, ada.name, "newer")
    assert generations(sessions, ada.name) == {3: Running.stopped, 4: Running.running}
    assert clear(sessions.sessions, sessions.journal, DAY) == ()
    assert clear(sessions.sessions, sessions.journal, 0.0) == (replace(ada, generation=3).container,)
    assert generations(sessions, ada.name) == {4: Running.running}


def test_one_into_which_the_home_is_mounted_isnt_kept(sessions: Fleet) -> None:
    bob = sessions.add(2, sessions.image("old"), ACCESS)
    move(sessions, bob.name, "new")
    assert generations(sessions, bob.name) == {2: Running.running}


def test_what_a_move_may_still_need_or_nobody_knows_stays(sessions: Fleet, ada: Session) -> None:
    [old, _] = sessions.sessions.engine.containers(ada.name)
    *_, move = sessions.journal.history(ada.name)
    later = now() + timedelta(days=1)
    assert outlived([old], [move], later) == (old,)
    assert outlived([old], [], later) == ()
    for state in (State.held, State.verified):
        assert outlived([old], [move, replace(move, state=state)], later) == ()


def test_another_container_than_the_same_as_before_is_no_way_back(sessions: Fleet, ada: Session) -> None:
    containers = sessions.sessions.engine.containers(ada.name)
    target = replace(ada, generation=4)
    assert had(target, containers, 3) == ada
    for other in (replace(target, environment={"COLOUR": "blue"}), replace(target, memory=1)):
        assert had(other, containers, 3) is None


def test_a_session_whose_record_was_lost_is_the_one_that_ran_last(sessions: Fleet, ada: Session) -> None:
    with sessions.world.person():
        sessions.sessions.stop(ada.name)
    [(first, *_)] = without_record(sessions.sessions.engine.containers(), ())
    assert first.generation == 3
