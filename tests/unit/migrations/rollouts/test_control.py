"""Rollouts are steered by people: paused, resumed, aborted, approved."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.migrations.notifications.notice import first_told
from flows.migrations.planning.rollout import Health, RolloutStatus
from flows.migrations.planning.wave_gates import title
from flows.migrations.rollouts.control import steer
from flows.migrations.rollouts.store import Rollouts
from flows.sessions.events import Kind
from flows.sessions.history import History
from tests.support.simulated.fleet import fleet

IMAGE = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("what", "way"),
    [("pause", RolloutStatus.paused), ("resume", RolloutStatus.running), ("abort", RolloutStatus.aborted)],
    ids=lambda value: value,
)
def test_a_rollout_is_steered_by_its_digest(
    settings: Settings, database: Engine, what: str, way: RolloutStatus
) -> None:
    Rollouts(database).begin({("p0", "2026a"): IMAGE}, {}, "root")
    assert steer(what, IMAGE[7:19], settings, "ann") == f"The rollout of {IMAGE[7:19]} is {way}."
    assert Rollouts(database).all()[IMAGE].way is way


def test_who_was_told_of_an_image_that_is_aborted_hears_so_and_has_no_deadline_any_more(tmp_path: Path) -> None:
    with fleet(tmp_path / "home") as sessions, sessions.in_charge():
        ada, new = sessions.add(1, sessions.image("old")), sessions.image("new")
        Rollouts(sessions.database).begin({(ada.profile, ada.release): new}, {}, "root")
        history = History(sessions.database)
        history.add(Kind.noticed, session=ada.name, image=new, data={"from": ada.image})
        assert first_told(history.events(), Kind.noticed)
        steer("abort", new, sessions.settings, "ann")
        assert not first_told(history.events(), Kind.noticed)
        assert [event.kind for event in history.events(ada.name)] == [Kind.noticed, Kind.withdrawn]
        history.add(Kind.noticed, session=ada.name, image=new, data={"from": ada.image})
        assert list(first_told(history.events(), Kind.noticed)) == [(ada.name, ada.image)] and not history.broken()


def test_an_answer_about_one_wave_is_none_about_the_next(settings: Settings, database: Engine) -> None:
    standings, waves = Rollouts(database), settings.migration.waves
    standings.begin({("p0", "2026a"): IMAGE}, {}, "root")
    standings.judge(IMAGE, 2, title(2, waves), Health.unapproved)
    with pytest.raises(RefitError, match=f"doesn't wait for an approval after the wave {title(1, waves)}"):
        steer("approve", IMAGE, settings, "ann", title(1, waves))
    assert not standings.all()[IMAGE].approved
    steer("approve", IMAGE, settings, "ann", title(2, waves))
    approved = standings.all()[IMAGE].approved
    assert approved and approved[0] == 2


def test_what_waits_for_no_approval_gets_none(settings: Settings, database: Engine) -> None:
    Rollouts(database).begin({("p0", "2026a"): IMAGE}, {}, "root")
    with pytest.raises(RefitError, match="doesn't wait for an approval"):
        steer("approve", "", settings, "ann")
