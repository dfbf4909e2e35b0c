"""Wishes of owners about migrations: said, kept, told apart from those that nobody can mean."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
import sqlalchemy
from pydantic import ValidationError
from sqlalchemy import Engine

from flows.catalog.model import Access
from flows.core.database import now, open_database
from flows.core.errors import RefitError, UnknownName
from flows.core.hours import read_hours
from flows.core.settings.policy import Freeze, Mode, RolloutPolicy, SessionPolicy
from flows.core.settings.spans import Span
from flows.sessions.events import Kind
from flows.sessions.history import EventRow, History
from flows.sessions.homes.folders import ref_of
from flows.sessions.model import Session, TokenRef
from flows.sessions.preferences import UpdatePreferences, chosen_hours, chosen_mode, read_duration
from flows.sessions.store import Store
from flows.sessions.wishes import PreferenceStore


@pytest.fixture
def database(tmp_path: Path) -> Engine:
    engine = open_database(f"sqlite:///{tmp_path / 'refit.db'}")

    def make(uid: int) -> Session:
        return Session("ann", "p", "2026a", "sha256:1", uid, ref_of(tmp_path), TokenRef(str(tmp_path)), Access())

    Store(engine).add("ann", make, uids=Span(first=300_000, last=300_009))
    return engine


def test_a_wish_is_kept_with_who_said_it(database: Engine) -> None:
    wishes, later = PreferenceStore(database), now() + timedelta(hours=2)
    assert wishes.all() == {}
    wishes.change("ann", "ann", **chosen_mode("pin", "2026-12-24"))
    wishes.change("ann", "bob", snoozed_until=later, **chosen_hours(("mon-fri 22:00-07:00",), "Europe/Zurich"))
    quiet = (read_hours("mon-fri 22:00-07:00"),)
    assert wishes.all() == {"ann": UpdatePreferences(Mode.pin, date(2026, 12, 24), later, "Europe/Zurich", quiet)}
    assert [change.by for change in wishes.changes("ann")] == ["ann", "bob"]
    assert wishes.changes("ann")[0].what == "mode: pin, until: 2026-12-24, agreed: none"


def test_a_wish_is_in_the_chain_of_the_history_and_one_that_was_not_taken_is_not(database: Engine) -> None:
    wishes, history = PreferenceStore(database), History(database)
    with pytest.raises(UnknownName):
        wishes.change("eve", "eve", volunteer=True)
    with pytest.raises(TypeError):
        wishes.change("ann", "ann", no_such_field=True)
    assert history.length() == 0
    wishes.change("ann", "ann", **chosen_mode("pin", "2026-12-24"))
    wishes.change("ann", "bob", volunteer=True)
    told = [(event.kind, event.session, event.by, event.what) for event in history.events()]
    assert told == [(Kind.wished, "ann", change.by, change.what) for change in wishes.changes("ann")]
    assert [by for _, _, by, _ in told] == ["ann", "bob"]
    with database.begin() as connection:
        connection.execute(sqlalchemy.update(EventRow).where(EventRow.number == 1).values(by="eve"))
    assert "event 1 was changed" in history.broken()


def test_a_session_may_belong_to_somebody(database: Engine) -> None:
    wishes = PreferenceStore(database)
    assert wishes.of("ann") == UpdatePreferences()
    wishes.change("ann", "root", owner="Ann Lee")
    assert wishes.of("ann") == UpdatePreferences(owner="Ann Lee")


def test_a_new_mode_ends_what_was_agreed_and_a_session_that_goes_takes_its_wish_along(database: Engine) -> None:
    wishes = PreferenceStore(database)
    wishes.change("ann", "ann", agreed="sha256:2", volunteer=True)
    assert wishes.change("ann", "ann", **chosen_mode("ask", "")) == UpdatePreferences(Mode.ask, volunteer=True)
    Store(database).forget("ann")
    assert wishes.all() == {}
    assert len(wishes.changes("ann")) == 2
    with pytest.raises(UnknownName):
        wishes.change("ann", "ann", volunteer=False)


@pytest.mark.parametrize(
    ("mode", "day", "said"),
    [
        ("pinn", "", "no mode 'pinn'"),
        ("pin", "", "needs a date"),
        ("ask", "2026-12-24", "has no date"),
        ("pin", "christmas", "is no date"),
    ],
)
def test_a_mode_that_nobody_can_mean_is_refused(mode: str, day: str, said: str) -> None:
    with pytest.raises(RefitError, match=said):
        chosen_mode(mode, day)


def test_hours_can_be_taken_back_and_have_to_be_hours() -> None:
    assert chosen_hours(None, None) == {}
    assert chosen_hours(("",), "") == {"quiet": (), "time_zone": ""}
    for quiet, zone in ((("at night",), None), (None, "Europe/Atlantis")):
        with pytest.raises(RefitError):
            chosen_hours(quiet, zone)


def test_lengths_of_time() -> None:
    assert read_duration("30m") == timedelta(minutes=30)
    assert read_duration("1d12h") == timedelta(hours=36)
    for text in ("", "0h", "2 hours", "-1h", "1h2d"):
        with pytest.raises(RefitError, match="no length of time"):
            read_duration(text)


def test_a_profile_goes_before_its_release_and_that_before_the_settings() -> None:
    everybody = SessionPolicy.model_validate({"quiet": ["22:00-07:00"], "mode": "ask", "deadline_days": 7})
    release = SessionPolicy.model_validate({"mode": "when-idle", "deadline_days": 14})
    policy = SessionPolicy(deadline_days=None).over(release).over(everybody)
    assert (policy.mode, policy.deadline_days, policy.quiet) == (Mode.when_idle, None, (read_hours("22:00-07:00"),))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"waves": [1, 10]}, "waves grow up to 100"),
        ({"waves": [10, 1, 100]}, "waves grow up to 100"),
        ({"waves": []}, "waves grow up to 100"),
        ({"unavailable": {"rollout": 0}}, "unavailable.rollout\n.* greater than or equal to 1"),
        ({"sessions": {"mode": "pin"}}, "pin needs a date"),
        ({"sessions": {"quiet": ["nights"]}}, "'nights' are no hours"),
        ({"sessions": {"time_zone": "Europe/Atlantis"}}, "there is no time zone 'Europe/Atlantis'"),
        ({"freezes": [{"first": "2026-12-24", "last": "2026-12-20", "why": "holidays"}]}, "can't end on 2026-12-20"),
        ({"freeze": []}, "freeze\n.*Extra inputs"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(written: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        RolloutPolicy.model_validate(written)


def test_a_policy_reaches_other_processes_as_it_was_written() -> None:
    freeze = Freeze(first=date(2026, 12, 20), last=date(2027, 1, 3), why="holidays")
    policy = RolloutPolicy(freezes=(freeze,), sessions=SessionPolicy(quiet=(read_hours("22:00-07:00"),)))
    assert RolloutPolicy.model_validate_json(policy.model_dump_json(exclude_unset=True)) == policy
