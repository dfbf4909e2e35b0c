"""How rollouts stand, in a database: what supersedes, what a person says, and that all of it is in the history."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from flows.core.database import open_database
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.migrations.planning.rollout import Health, RolloutStatus
from flows.migrations.rollouts.store import Rollouts
from flows.sessions.events import Kind
from flows.sessions.history import History

KEY, OTHER = ("p0", "2026a"), ("p1", "2026a")
FIRST, SECOND, THIRD = (f"sha256:{digit * 64}" for digit in "abc")


@pytest.fixture
def database(settings: Settings) -> Engine:
    return open_database(settings.database)


@pytest.fixture
def standings(database: Engine) -> Rollouts:
    return Rollouts(database)


def kinds(database: Engine) -> list[Kind]:
    return [event.kind for event in History(database).events()]


def test_a_rollout_begins_once(standings: Rollouts, database: Engine) -> None:
    for canary in ("ada", "bob"):
        standings.begin({KEY: FIRST}, {FIRST: canary}, "root")
    (standing,) = standings.all().values()
    assert (standing.image, standing.profile, standing.way, standing.canary) == (
        FIRST,
        "p0",
        RolloutStatus.running,
        "ada",
    )
    assert kinds(database) == [Kind.rollout_begun] and not History(database).broken()


def test_a_newer_image_supersedes_that_of_the_same_profile_alone(standings: Rollouts, database: Engine) -> None:
    standings.begin({KEY: FIRST, OTHER: SECOND}, {}, "root")
    standings.begin({KEY: THIRD}, {}, "root")
    assert {image: one.way for image, one in standings.all().items()} == {
        FIRST: RolloutStatus.superseded,
        SECOND: RolloutStatus.running,
        THIRD: RolloutStatus.running,
    }
    with pytest.raises(RefitError, match="over"):
        standings.steer(FIRST, RolloutStatus.running, "root")
    began = standings.all()[FIRST].begun
    standings.begin({KEY: FIRST}, {}, "root")  # somebody goes back to it
    assert standings.all()[FIRST].begun > began and standings.all()[THIRD].way is RolloutStatus.superseded


def test_what_a_person_says_is_written_down_with_who_said_it(standings: Rollouts, database: Engine) -> None:
    standings.begin({KEY: FIRST}, {}, "root")
    for way in (RolloutStatus.paused, RolloutStatus.paused, RolloutStatus.running, RolloutStatus.aborted):
        standings.steer(FIRST, way, "ann")
    standings.approve(FIRST, 2, "ann", "10 %")
    assert kinds(database) == [Kind.rollout_begun, Kind.paused, Kind.resumed, Kind.aborted, Kind.approved]
    assert {event.by for event in History(database).events()[1:]} == {"ann"}
    approved = standings.all()[FIRST].approved
    assert approved and approved == (2, History(database).events()[-1].at)


def test_an_aborted_rollout_stays_so_when_it_is_planned_again(standings: Rollouts) -> None:
    standings.begin({KEY: FIRST}, {}, "root")
    standings.steer(FIRST, RolloutStatus.aborted, "ann")
    standings.begin({KEY: FIRST}, {}, "root")
    assert standings.all()[FIRST].way is RolloutStatus.aborted


def test_what_a_wave_says_is_written_down_when_it_changes(standings: Rollouts, database: Engine) -> None:
    standings.begin({KEY: FIRST}, {}, "root")
    said = [standings.judge(FIRST, 1, "10 %", health) for health in (Health.failed, Health.failed, Health.passed)]
    assert said == [True, False, True] and standings.judge(FIRST, 2, "50 %", Health.passed)
    told = [event.what for event in History(database).events(kinds=[Kind.judged])]
    assert told == ["10 %: failed", "10 %: passed", "50 %: passed"]


def test_a_rollout_waits_at_the_waves_of_which_the_last_word_stops_it(standings: Rollouts) -> None:
    standings.begin({KEY: FIRST}, {}, "root")
    for wave, health in ((1, Health.failed), (1, Health.passed), (2, Health.unapproved)):
        standings.judge(FIRST, wave, f"wave {wave}", health)
    assert standings.waiting(standings.all()[FIRST]) == (2,)


def test_a_rollout_is_found_by_its_first_digits_or_if_it_is_the_only_one(standings: Rollouts) -> None:
    with pytest.raises(RefitError, match="Which rollout"):
        standings.find()
    standings.begin({KEY: FIRST}, {}, "root")
    assert standings.find().image == standings.find("aaaaaaaaaaaa").image == standings.find(FIRST).image == FIRST
    standings.begin({OTHER: SECOND}, {}, "root")
    with pytest.raises(RefitError, match="Which rollout"):
        standings.find()
    with pytest.raises(RefitError, match="too short"):
        standings.find("aa")
    with pytest.raises(UnknownName):
        standings.find("0123456789")
