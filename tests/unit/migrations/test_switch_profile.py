"""Going back to the image that a session had, and what is done with sessions in Prefect's UI; they are simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows.change_session import change_session
from flows.core.errors import RefitError
from flows.core.settings.policy import Mode
from flows.migrations.notifications.notice import first_told
from flows.migrations.switch_profile import as_before, go_back
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.model import Running, Session
from flows.sessions.wishes import PreferenceStore
from tests.support.simulated.fleet import Fleet, fleet


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "home") as simulated, simulated.in_charge():
        yield simulated


@pytest.fixture
def moved(sessions: Fleet) -> Session:
    """A session that has moved once, as it was before."""
    before = sessions.add(1, sessions.image("old"))
    assert sessions.executor().carry_out(sessions.to(before, sessions.image("new"))).moved
    return before


def back(sessions: Fleet, name: str) -> Session:
    with sessions.world.person():  # what is in the home isn't simulated
        assert go_back(sessions.settings, name, force=True).moved
    return sessions.sessions.store.session(name)


@pytest.mark.slow
def test_a_session_gets_the_image_back_that_it_had_and_is_asked_from_then_on(sessions: Fleet, moved: Session) -> None:
    after = back(sessions, moved.name)
    assert (after.image, after.generation, after.home) == (moved.image, moved.generation + 2, moved.home)
    assert not sessions.world.lost(moved, ("/.cache/",))
    assert PreferenceStore(sessions.database).all()[moved.name].mode is Mode.ask
    assert back(sessions, moved.name).image != moved.image  # and forth again


@pytest.mark.slow
def test_who_went_back_is_told_anew_before_a_deadline_begins(sessions: Fleet, moved: Session) -> None:
    History(sessions.database).add(Kind.noticed, session=moved.name, image="new", data={"from": moved.image})
    assert (moved.name, moved.image) in first_told(History(sessions.database).events(), Kind.noticed)
    back(sessions, moved.name)
    assert first_told(History(sessions.database).events(), Kind.noticed) == {}


@pytest.mark.slow
def test_what_its_owner_has_chosen_stays(sessions: Fleet, moved: Session) -> None:
    PreferenceStore(sessions.database).change(moved.name, "ann", mode=Mode.next_start)
    back(sessions, moved.name)
    assert PreferenceStore(sessions.database).all()[moved.name].mode is Mode.next_start


def test_a_session_that_was_never_moved_has_nothing_to_go_back_to(sessions: Fleet) -> None:
    with pytest.raises(RefitError, match="was made with"):
        go_back(sessions.settings, sessions.add(1, sessions.image("old")).name)


def test_a_profile_that_was_switched_is_the_one_before_again(sessions: Fleet) -> None:
    ada = sessions.add(1, sessions.image("old"))
    other = replace(ada, profile="runtime-minimal-deb12-py311", gpus=1, memory=1 << 30, generation=2)
    assert as_before(other, ada) == replace(ada, generation=2)


def change(sessions: Fleet, name: str, what: str, monkeypatch: pytest.MonkeyPatch, **more: object) -> str:
    monkeypatch.setattr("flows.change_session.load_settings", lambda: sessions.settings)
    with sessions.world.person(), disable_run_logger():
        return change_session.fn(name, what, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_in_prefects_ui_a_session_is_stopped_started_brought_back_and_removed(
    sessions: Fleet, moved: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> Running | None:
        return next((box.running for box in sessions.world.of(moved.name)), None)

    assert change(sessions, moved.name, "stop", monkeypatch) == "s1 is stopped." and state() is Running.stopped
    assert (
        change(sessions, moved.name, "start", monkeypatch).startswith("s1 runs at http") and state() is Running.running
    )
    assert moved.image in change(sessions, moved.name, "rollback", monkeypatch, force=True)
    assert "home stays" in change(sessions, moved.name, "remove", monkeypatch) and state() is None
    for what, profile in (("change-profile", ""), ("stop", "runtime-minimal-deb12-py311")):
        with pytest.raises(RefitError, match="profile"):
            change(sessions, moved.name, what, monkeypatch, profile=profile)
