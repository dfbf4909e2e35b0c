"""The schedule of snapshots and their retention, on simulated sessions and as a pure decision."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flows.core.settings.policy import SnapshotPolicy
from flows.migrations.snapshots import snapshot_actions, snapshot_schedule
from flows.sessions.model import Session
from flows.sessions.snapshots.model import Kind, Snapshot
from flows.sessions.snapshots.records import SnapshotRecords
from flows.sessions.snapshots.retention import Rules, first_to_go, images_kept, is_due, outlived
from flows.sessions.snapshots.retention_overrides import RulesStore
from tests.support.simulated.fleet import Fleet, fleet

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
POLICY = SnapshotPolicy()


def taken(hours: float, kind: Kind = Kind.scheduled, image: str = "sha256:1") -> Snapshot:
    return Snapshot(f"{hours}-{kind}", "ada", f"{hours}", kind, "ada", NOW - timedelta(hours=hours), image=image)


def test_the_newest_stay_and_the_last_of_each_day_for_a_week_and_named_ones_for_good() -> None:
    hourly = [taken(hours) for hours in range(24 * 10)]
    named, move = taken(24 * 400, Kind.named), taken(30, Kind.move)
    going = outlived([*hourly, named, move], POLICY, 24, NOW)
    staying = [one for one in [*hourly, named, move] if one not in going]
    assert [one.name for one in staying] == ["0", "1", "2", *(str(13 + 24 * day) for day in range(7)), named.name]
    assert [one.at for one in going] == sorted(one.at for one in going)
    assert outlived([move], POLICY, 31, NOW) == () and outlived([named], POLICY, 0, NOW) == ()


def test_without_newest_and_days_all_go() -> None:
    nothing = POLICY.model_copy(update={"newest": 0, "days": 0})
    assert len(outlived([taken(1), taken(2, Kind.safety), taken(3, Kind.unnamed)], nothing, 0, NOW)) == 3


def test_a_schedule_counts_from_the_latest_whoever_took_it() -> None:
    every = POLICY.model_copy(update={"every_hours": 4.0})
    assert not is_due([], POLICY, NOW) and is_due([], every, NOW)
    assert is_due([taken(4)], every, NOW) and not is_due([taken(4), taken(3.9, Kind.named)], every, NOW)


def test_where_room_is_short_the_oldest_goes_that_nobody_has_named_and_none_of_the_last_hour() -> None:
    many = [taken(9, Kind.named), taken(5), taken(8, Kind.safety), taken(0.5)]
    assert first_to_go(many) == many[2]
    assert first_to_go([taken(9, Kind.named)]) is None
    assert first_to_go([taken(0.5), taken(0.1)]) is None


def test_so_many_images_stay_for_the_newest_snapshots() -> None:
    three = [taken(hours, image=f"sha256:{hours}") for hours in (3, 1, 2)]
    assert list(images_kept([*three, taken(4, image="sha256:1")], 2)) == ["sha256:1", "sha256:2"]
    assert images_kept(three, 0) == {} and "session ada" in images_kept(three, 1)["sha256:1"]


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    return sessions.add(1, sessions.image("old"))


def mind(sessions: Fleet, **policy: float) -> list[Kind]:
    settings = sessions.settings.model_copy(update={"snapshots": POLICY.model_copy(update=policy)})
    snapshot_schedule.mind(settings, sessions.sessions)
    return [one.kind for one in SnapshotRecords(sessions.database).all()]


def test_the_schedule_takes_one_of_what_runs_and_has_changed(sessions: Fleet, ada: Session) -> None:
    assert mind(sessions) == []
    assert mind(sessions, every_hours=1e-9) == [Kind.scheduled]
    assert mind(sessions, every_hours=1e-9) == [Kind.scheduled]  # nothing has changed
    with sessions.world.person():
        sessions.world.work(ada.name, "more")
    assert mind(sessions, every_hours=1e-9) == [Kind.scheduled] * 2
    with sessions.world.person():
        sessions.world.work(ada.name, "and more")
        sessions.sessions.stop(ada.name)
    assert mind(sessions, every_hours=1e-9) == [Kind.scheduled] * 2


def test_a_session_has_rules_of_its_own(sessions: Fleet, ada: Session) -> None:
    RulesStore(sessions.database).choose(ada.name, Rules(every_hours=0.0, newest=1), "ada")
    assert mind(sessions, every_hours=1e-9) == []
    for _ in range(3):
        snapshot_actions.take(sessions.sessions, ada.name, "ada")
    assert len(mind(sessions, days=0)) == 1 and len(sessions.world.snapshots) == 1
    RulesStore(sessions.database).choose(ada.name, Rules(), "ada")
    assert RulesStore(sessions.database).of(ada.name) == Rules()
    assert replace(Rules(), newest=2).over_rules(Rules(days=3)) == Rules(newest=2, days=3)


def test_a_session_on_which_somebody_acts_is_left(sessions: Fleet, ada: Session) -> None:
    with sessions.sessions.alone(ada.name):
        assert mind(sessions, every_hours=1e-9) == []


def test_the_home_as_a_move_found_it_stays_for_so_many_hours(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", keep_hours=2) as sessions:
        ada = sessions.add(1, sessions.image("old"))
        assert sessions.executor().carry_out(sessions.to(ada, sessions.image("new"))).moved
        [one] = snapshot_actions.listed(sessions.sessions, ada.name)
        assert (one.snapshot.kind, one.snapshot.image) == (Kind.move, ada.image)
        snapshot_schedule.mind(sessions.settings, sessions.sessions)
        assert len(sessions.world.snapshots) == 1
        hours = sessions.settings.migration.model_copy(update={"keep_hours": 0.0})
        snapshot_schedule.mind(sessions.settings.model_copy(update={"migration": hours}), sessions.sessions)
        assert not sessions.world.snapshots and snapshot_actions.listed(sessions.sessions, ada.name) == ()
