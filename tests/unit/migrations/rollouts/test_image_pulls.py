"""Images are pulled before anybody is moved, if there is room."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.migrations.planning.rollout import Action, Reason
from flows.migrations.rollouts.image_pulls import room_for_images
from flows.migrations.rollouts.session_planner import SessionPlanner
from tests.support.simulated.fleet import fleet

IMAGE = f"sha256:{'ab' * 32}"


def test_what_has_to_be_pulled_is_pulled_before_the_first_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.migrations.rollouts.observer.room_for_images", lambda _: 10**11)
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        ada = sessions.add(1, sessions.image("old"))
        new = sessions.image("new", size=10**10)
        planning = SessionPlanner(sessions.settings)
        (line,) = planning.plan([], "")
        assert (line.session, line.action, line.reason) == (ada.name, Action.later, Reason.pull)
        (named,) = planning.plan([ada.name], "")
        assert named.action is Action.migrate
        assert planning.fetch([line]) == (new,) and sessions.world.effects["pull"]
        (line,) = planning.plan([], "")
        assert (line.action, line.reason) == (Action.migrate, None) and not planning.fetch([line])


def test_an_image_that_cannot_be_pulled_is_left_to_the_moves_which_say_why(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        sessions.add(1, sessions.image("old"))
        new = sessions.image("new", size=1000)
        del sessions.world.images[new]
        planning = SessionPlanner(sessions.settings)
        assert planning.fetch(planning.plan([], "")) == (new,)
        assert [line.action for line in planning.plan([], "")] == [Action.migrate]


@pytest.mark.slow
def test_an_image_for_which_there_is_no_room_moves_nobody_and_one_that_is_here_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.migrations.rollouts.observer.room_for_images", lambda _: 10**10)
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        sessions.add(1, sessions.image("old"))
        sessions.image("new", size=10**11)
        planning = SessionPlanner(sessions.settings)
        lines = planning.plan([], "")
        assert [line.reason for line in lines] == [Reason.room] and not planning.fetch(lines)
        sessions.image("smaller", size=10**10)
        assert [line.reason for line in planning.plan([], "")] == [Reason.pull]
        sessions.image("same layers")
        assert [line.action for line in planning.plan([], "")] == [Action.migrate]


def test_a_registry_that_cannot_say_what_has_to_be_pulled_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> dict[str, int]:
        raise RefitError("The registry doesn't answer.")

    monkeypatch.setattr("flows.migrations.rollouts.image_pulls.to_pull", silent)
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        sessions.add(1, sessions.image("old"))
        sessions.image("new", size=10**9)
        assert [line.action for line in SessionPlanner(sessions.settings).plan([], "")] == [Action.migrate]


def test_there_is_room_for_some_of_what_the_disk_has_left(settings: Settings) -> None:
    free = shutil.disk_usage(settings.folder()).free
    # Other tests write to the same disk meanwhile.
    assert room_for_images(settings) == pytest.approx((free - (1 << 30)) / 3, abs=1 << 28)
