"""What the flow of a migration decides by itself, and how it waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from flows.database import now, open_database
from flows.errors import RefitError
from flows.migrate_sessions import _alone, _at_once, _Watch
from flows.migrations.history import History, Kind
from flows.migrations.planning.rollout import Way
from flows.migrations.telling.standing import Standings
from flows.plan_migration import steer
from flows.settings import Settings

IMAGE = f"sha256:{'ab' * 32}"


@pytest.fixture
def database(settings: Settings) -> Engine:
    return open_database(settings.database)


def test_no_more_are_away_at_once_than_the_strictest_cap_lets() -> None:
    assert _at_once(Settings(), 4) == 4
    tight = Settings.model_validate({"migration": {"unavailable": {"host": 8, "profile": 2}}})
    assert _at_once(tight, 4) == 2


def test_one_run_follows_a_migration_at_a_time(database: Engine) -> None:
    with _alone(database) as first, _alone(database) as second:
        assert first and not second
    with _alone(database) as third:
        assert third


def test_who_waits_hears_at_once_what_anybody_says(database: Engine) -> None:
    clock = _Watch(database)
    clock.wait(now() - timedelta(seconds=1))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(clock.wait, now() + timedelta(hours=1))
        History(database).add(Kind.paused, image=IMAGE)
        waiting.result(timeout=60)


@pytest.mark.parametrize(
    ("what", "way"), [("pause", Way.paused), ("resume", Way.running), ("abort", Way.aborted)], ids=lambda value: value
)
def test_a_rollout_is_steered_by_its_digest(settings: Settings, database: Engine, what: str, way: Way) -> None:
    Standings(database).begin({("p0", "2026a"): IMAGE}, {}, "root")
    assert steer(what, IMAGE[7:19], settings, "ann") == f"The rollout of {IMAGE[7:19]} is {way}."
    assert Standings(database).all()[IMAGE].way is way


def test_what_waits_for_no_approval_gets_none(settings: Settings, database: Engine) -> None:
    Standings(database).begin({("p0", "2026a"): IMAGE}, {}, "root")
    with pytest.raises(RefitError, match="doesn't wait for an approval"):
        steer("approve", "", settings, "ann")


def test_without_a_word_it_is_waited_to_the_end(database: Engine) -> None:
    clock, until = _Watch(database), now() + timedelta(seconds=0.2)
    clock.wait(until)
    assert now() >= until
