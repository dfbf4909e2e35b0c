"""Sessions on a profile of another person's own: which of its builds they get, in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.settings.personal_builds import PersonalBuilds
from flows.core.settings.policy import Mode
from flows.migrations.move_steps import State
from flows.migrations.planning.consent import terms
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.migrations.rollouts.foreign_builds import Foreign, foreign
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Account, Rights
from flows.sessions.people.rights import Heard
from flows.sessions.store import Store
from flows.sessions.wishes import PreferenceStore
from tests.support.planning import NEW, NOW, candidate, policy, rollout
from tests.support.simulated.fleet import PROFILE, RELEASE, Fleet, fleet

ADA, BOB = "s0", "s1"  # the sessions of these two
BUNDLE = "minimal"
LAB = frozenset({"lab"})
OWN = OwnProfile(BUNDLE, "ada", PROFILE, RELEASE, {}, ("lab",), now())


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Account]:
    """The Hub's accounts, to be changed."""
    there = {"ada": Account("ada", LAB), "bob": Account("bob", LAB), "eve": Account("eve", LAB)}
    monkeypatch.setattr(rights, "last", lambda _: Heard(Rights(there)))
    return there


@pytest.fixture
def sessions(tmp_path: Path, accounts: dict[str, Account]) -> Iterator[Fleet]:
    """Two sessions on the first image of ada's own profile, hers and bob's; a second image is there."""
    with fleet(tmp_path / "home") as sessions, sessions.in_charge():
        first = sessions.image("first", maker="ada")
        for number, owner in enumerate(("ada", "bob")):
            made = sessions.add(number, first)
            Store(sessions.database).give_home(made.name, owner)
        records = OwnProfiles(sessions.database)
        records.take(OWN, PersonalBuilds())
        records.offer(BUNDLE, "ada", ("lab",))
        sessions.image("second", maker="ada")
        yield sessions


def planned(sessions: Fleet) -> dict[str, Decision]:
    return {line.session: line for line in SessionPlanner(sessions.settings).plan([], "", begin=True)}


def test_its_owner_gets_the_next_build_and_others_are_asked(sessions: Fleet) -> None:
    lines = planned(sessions)
    assert lines[ADA].action is Action.migrate
    assert (lines[BOB].action, lines[BOB].reason) == (Action.wait, Reason.ask)
    assert lines[BOB].detail == "ada's own recipe made it" and lines[BOB].at is None
    PreferenceStore(sessions.database).change(BOB, "bob", agreed=lines[BOB].new)
    agreed = planned(sessions)[BOB]
    assert agreed.action is Action.migrate
    assert sessions.executor().carry_out(agreed).state is State.cleaned


def test_they_are_asked_no_more_once_they_have_said_so(sessions: Fleet) -> None:
    PreferenceStore(sessions.database).change(BOB, "bob", mode=Mode.when_idle)
    assert planned(sessions)[BOB].action is Action.migrate


def withdraw(sessions: Fleet, _: dict[str, Account]) -> None:
    OwnProfiles(sessions.database).offer(BUNDLE, "ada", ())


def leave(_: Fleet, accounts: dict[str, Account]) -> None:
    accounts["bob"] = Account("bob")


def remove_account(sessions: Fleet, _: dict[str, Account]) -> None:
    OwnProfiles(sessions.database).leave("ada")


@pytest.mark.parametrize("end", [withdraw, leave, remove_account])
def test_once_the_offer_has_ended_no_build_comes_whatever_was_said(
    sessions: Fleet, accounts: dict[str, Account], end: Callable[[Fleet, dict[str, Account]], None]
) -> None:
    PreferenceStore(sessions.database).change(BOB, "bob", mode=Mode.when_idle)
    end(sessions, accounts)
    lines = planned(sessions)
    assert (lines[BOB].action, lines[BOB].reason) == (Action.skip, Reason.not_offered)
    assert lines[ADA].action is Action.migrate
    with pytest.raises(RefitError, match="offered to its owner no longer") as error:
        SessionPlanner(sessions.settings).plan([BOB], "")
    assert "refit profile offer" in error.value.hint
    OwnProfiles(sessions.database).offer(BUNDLE, "ada", (), ("bob",))
    assert planned(sessions)[BOB].action is Action.migrate


def test_at_a_start_it_comes_only_to_those_who_wished_it_and_have_the_offer(sessions: Fleet) -> None:
    planned(sessions)  # its rollout has begun
    with sessions.world.person():
        sessions.sessions.stop(BOB)
    wishes, planner = PreferenceStore(sessions.database), SessionPlanner(sessions.settings)
    assert planner.at_start(BOB) is None
    wishes.change(BOB, "bob", mode=Mode.next_start)
    line = planner.at_start(BOB)
    assert line is not None and line.new != line.old
    withdraw(sessions, {})
    assert planner.at_start(BOB) is None


def test_a_name_that_another_person_took_brings_their_builds_to_nobody(sessions: Fleet) -> None:
    records = OwnProfiles(sessions.database)
    records.forget(BUNDLE, "ada")
    records.take(replace(OWN, owner="eve"), PersonalBuilds())
    records.offer(BUNDLE, "eve", ("lab",))
    sessions.image("third", maker="eve")
    PreferenceStore(sessions.database).change(BOB, "bob", mode=Mode.when_idle)
    lines = planned(sessions)
    assert {(line.action, line.reason) for line in lines.values()} == {(Action.skip, Reason.other_maker)}


def test_a_name_of_the_catalog_that_a_person_took_brings_their_builds_to_nobody(
    tmp_path: Path, accounts: dict[str, Account]
) -> None:
    with fleet(tmp_path / "other") as sessions, sessions.in_charge():
        made = sessions.add(0, sessions.image("of the catalog"))
        Store(sessions.database).give_home(made.name, "bob")
        OwnProfiles(sessions.database).take(OWN, PersonalBuilds())
        OwnProfiles(sessions.database).offer(BUNDLE, "ada", ("lab",))
        sessions.image("of ada's", maker="ada")
        assert planned(sessions)[ADA].reason is Reason.other_maker


def test_an_image_of_the_catalog_comes_to_all_whoever_has_taken_its_name(sessions: Fleet) -> None:
    OwnProfiles(sessions.database).leave("ada")
    sessions.image("of the catalog")
    assert {line.action for line in planned(sessions).values()} == {Action.migrate}


@pytest.mark.parametrize(
    ("person", "groups", "makers", "judged"),
    [
        ("ada", (), ("ada", "ada"), Foreign("")),
        ("", (), ("ada", "ada"), Foreign("")),  # an operator's session
        ("bob", ("lab",), ("ada", "ada"), Foreign("ada")),
        ("bob", ("other",), ("ada", "ada"), Foreign("ada", Reason.not_offered)),
        ("bob", ("lab",), ("eve", "ada"), Foreign("ada", Reason.other_maker)),
        ("bob", ("lab",), ("eve", "eve"), Foreign("ada", Reason.other_maker)),  # a name that changes hands just now
        ("ada", (), ("", "ada"), Foreign("", Reason.other_maker)),
        ("", (), (None, "ada"), Foreign("", Reason.other_maker)),  # nobody can tell
        ("", (), ("ada", None), Foreign("", Reason.other_maker)),
        ("bob", (), ("", ""), Foreign("")),  # the catalog has a profile of this name
        ("bob", (), ("ada", ""), Foreign("")),
    ],
)
def test_the_judgement(
    person: str, groups: tuple[str, ...], makers: tuple[str | None, str | None], judged: Foreign
) -> None:
    assert foreign(OWN, person, groups, *makers) == judged


@pytest.mark.parametrize("mode", [Mode.when_idle, Mode.ask, Mode.next_start])
def test_no_policy_moves_somebody_by_force_or_unasked(mode: Mode) -> None:
    asked = candidate(
        by="ada", policy=policy(mode=mode, deadline_days=1, notice_hours=1), notified=NOW - timedelta(days=9)
    )
    assert terms(replace(asked, by=""), NEW, rollout()).deadline is not None
    assert (terms(asked, NEW, rollout()).waits, terms(asked, NEW, rollout()).deadline) == (Reason.ask, None)
