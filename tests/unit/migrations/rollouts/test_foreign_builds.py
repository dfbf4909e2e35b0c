"""Sessions on a profile of another person's own: which of its builds they get, in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from flows.catalog.model import Catalog
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.settings.personal_builds import PersonalBuilds
from flows.core.settings.policy import Mode
from flows.migrations.move_steps import State
from flows.migrations.planning.move_terms import terms
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.migrations.rollouts.foreign_builds import NOBODYS, Foreign, ForeignBuilds, foreign
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Account, Rights
from flows.sessions.people.rights import Heard
from flows.sessions.preferences import chosen_mode
from flows.sessions.store import Store
from flows.sessions.wishes import PreferenceStore
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.overview import Lookout
from flows.web.my_sessions.problems import Problem
from flows.web.my_sessions.verbs import update_verbs
from flows.web.my_sessions.verbs.context import VerbContext
from flows.web.people.scopes import Scope
from tests.support.planning import NEW, NOW, candidate, policy, rollout
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.fleet import PROFILE, RELEASE, Fleet, fleet
from tests.support.small_catalog import catalog

__all__ = ["catalog"]

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


@pytest.mark.parametrize("mode", [Mode.when_idle, Mode.next_start, Mode.forced_by])
def test_no_mode_agrees_to_images_that_nobody_has_seen_yet(sessions: Fleet, mode: Mode) -> None:
    day = now().date() if mode is Mode.forced_by else None
    PreferenceStore(sessions.database).change(BOB, f"{BOB}, from inside", mode=mode, until=day)
    line = planned(sessions)[BOB]
    assert (line.action, line.reason, line.deadline) == (Action.wait, Reason.ask, None)


def test_a_pin_that_has_ended_asks(sessions: Fleet) -> None:
    wishes = PreferenceStore(sessions.database)
    wishes.change(BOB, "bob", mode=Mode.pin, until=now().date() - timedelta(days=2))
    line = planned(sessions)[BOB]
    assert (line.action, line.reason) == (Action.wait, Reason.ask)
    wishes.change(BOB, "bob", agreed=line.new)
    assert planned(sessions)[BOB].action is Action.migrate
    wishes.change(BOB, "bob", mode=Mode.pin, until=now().date() + timedelta(days=9))
    line = planned(sessions)[BOB]
    assert (line.action, line.reason) == (Action.later, Reason.pinned)


def test_whoever_names_a_session_agrees_for_it(sessions: Fleet) -> None:
    planner = SessionPlanner(sessions.settings)
    [line] = planner.plan([BOB], "")
    assert line.by == "ada" and line.consent
    planner.agree([line])
    assert PreferenceStore(sessions.database).of(BOB).agreed == line.new
    assert sessions.executor().carry_out(line).state is State.cleaned


def withdraw(sessions: Fleet, _: dict[str, Account]) -> None:
    OwnProfiles(sessions.database).offer(BUNDLE, "ada", ())


def leave(_: Fleet, accounts: dict[str, Account]) -> None:
    accounts["bob"] = Account("bob")


def remove_account(sessions: Fleet, _: dict[str, Account]) -> None:
    OwnProfiles(sessions.database).leave("ada")


def give_back(sessions: Fleet, _: dict[str, Account]) -> None:
    OwnProfiles(sessions.database).forget(BUNDLE, "ada")


def take_back(sessions: Fleet, _: dict[str, Account]) -> None:
    PreferenceStore(sessions.database).change(BOB, "bob", **chosen_mode(Mode.ask, ""))


@pytest.mark.parametrize("end", [withdraw, leave, remove_account, give_back, take_back])
def test_an_offer_or_a_consent_that_ends_while_a_move_is_prepared_counts(
    sessions: Fleet,
    accounts: dict[str, Account],
    end: Callable[[Fleet, dict[str, Account]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    PreferenceStore(sessions.database).change(BOB, "bob", agreed=planned(sessions)[BOB].new)
    pull = SimulatedEngine.pull

    def pulling(engine: SimulatedEngine, image: str) -> None:
        end(sessions, accounts)
        pull(engine, image)

    monkeypatch.setattr(SimulatedEngine, "pull", pulling)
    line = planned(sessions)[BOB]
    result = sessions.executor().carry_out(line)
    assert result.state is State.deferred
    assert result.reason.endswith((Reason.ask if end is take_back else Reason.not_offered).text)
    assert Store(sessions.database).session(BOB).image == line.old


@pytest.mark.parametrize("end", [withdraw, leave, remove_account, give_back])
def test_once_the_offer_has_ended_no_build_comes_whatever_was_said(
    sessions: Fleet, accounts: dict[str, Account], end: Callable[[Fleet, dict[str, Account]], None]
) -> None:
    PreferenceStore(sessions.database).change(BOB, "bob", agreed=planned(sessions)[BOB].new)
    end(sessions, accounts)
    for planner in (SessionPlanner(sessions.settings, only_begun=True), SessionPlanner(sessions.settings)):
        lines = {line.session: line for line in planner.plan([], "")}
        assert (lines[BOB].action, lines[BOB].reason) == (Action.skip, Reason.not_offered)
        assert lines[ADA].action is Action.migrate
    with pytest.raises(RefitError, match="isn't offered to its owner") as error:
        SessionPlanner(sessions.settings).plan([BOB], "")
    assert "refit profile" not in error.value.hint  # whoever reads it on a page can't
    records = OwnProfiles(sessions.database)
    records.take(OWN, PersonalBuilds())
    records.offer(BUNDLE, "ada", (), ("bob",))
    assert planned(sessions)[BOB].action is Action.migrate


def test_the_owner_who_is_asked_is_told_by_whose_recipe_the_image_is(sessions: Fleet) -> None:
    planned(sessions)
    seen = Lookout(sessions.settings, sessions.database).one("bob", BOB, None).update
    assert seen and (seen.by, seen.mode, seen.reason) == ("ada", Mode.ask, Reason.ask)
    assert "you are to agree. ada's own recipe made that image" in seen.when
    mine = Lookout(sessions.settings, sessions.database).one("ada", ADA, None).update
    assert mine and mine.by == "" and mine.when.startswith("It moves by itself")
    PreferenceStore(sessions.database).change(BOB, "bob", mode=Mode.pin, until=now().date() + timedelta(days=9))
    seen = Lookout(sessions.settings, sessions.database).one("bob", BOB, None).update
    assert seen and seen.when.startswith("You have pinned it")


def test_an_image_that_came_after_somebody_agreed_is_asked_about_anew(sessions: Fleet) -> None:
    with pytest.raises(Problem, match="ada has published another image meanwhile"):
        update_verbs._moved(VerbContext(sessions.settings), BOB, "sha256:the one before", "")
    bob, seen = Caller("bob", frozenset(Scope)), update_verbs.Seen(image="sha256:the one before")
    with pytest.raises(Problem, match="A newer image has come since you looked"):
        update_verbs._move(VerbContext(sessions.settings), bob, BOB, seen)
    assert PreferenceStore(sessions.database).of(BOB).agreed == ""


def test_at_a_start_it_comes_only_to_those_who_agreed_and_have_the_offer(sessions: Fleet) -> None:
    new = planned(sessions)[BOB].new  # its rollout has begun
    with sessions.world.person():
        sessions.sessions.stop(BOB)
    wishes, planner = PreferenceStore(sessions.database), SessionPlanner(sessions.settings)
    wishes.change(BOB, "bob", mode=Mode.next_start)
    assert planner.at_start(BOB) is None
    wishes.change(BOB, "bob", agreed=new)
    line = planner.at_start(BOB)
    assert line is not None and line.new == new
    withdraw(sessions, {})
    assert planner.at_start(BOB) is None


def test_a_name_that_another_person_took_brings_their_builds_to_nobody(sessions: Fleet) -> None:
    records = OwnProfiles(sessions.database)
    records.forget(BUNDLE, "ada")
    records.take(replace(OWN, owner="eve"), PersonalBuilds())
    records.offer(BUNDLE, "eve", ("lab",))
    sessions.image("third", maker="eve")
    lines = planned(sessions)
    assert {(line.action, line.reason) for line in lines.values()} == {(Action.skip, Reason.other_maker)}
    records.forget(BUNDLE, "eve")  # the rollout of her image has begun
    lines = {line.session: line for line in SessionPlanner(sessions.settings, only_begun=True).plan([], "")}
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


def test_an_image_of_the_catalog_comes_to_all_once_an_operator_vouches_for_it(
    sessions: Fleet, catalog: Catalog
) -> None:
    give_back(sessions, {})
    sessions.image("of the catalog")
    assert {line.action for line in planned(sessions).values()} == {Action.migrate}  # `adopt` does so
    sessions.settings = sessions.settings.model_copy(update={"catalog": catalog.root})  # which has no such profile
    assert {line.reason for line in planned(sessions).values()} == {Reason.other_maker}


def test_a_session_that_others_keep_gets_no_build_of_a_persons_own(sessions: Fleet) -> None:
    kept = replace(Store(sessions.database).session(ADA), name="a-server", owned_by="server/ada/")
    new = planned(sessions)[ADA].new
    judged = ForeignBuilds(sessions.settings, sessions.database).of(kept, new)
    assert judged == Foreign("ada", Reason.not_offered)


def test_if_the_registry_has_lost_an_image_nobody_is_accused(sessions: Fleet) -> None:
    del sessions.references[Store(sessions.database).session(BOB).image]
    assert planned(sessions)[BOB].reason is Reason.unknown_maker


@pytest.mark.parametrize(
    ("person", "groups", "makers", "judged"),
    [
        ("ada", (), ("ada", "ada"), Foreign("")),
        ("", (), ("ada", "ada"), Foreign("")),  # an operator's session
        (None, (), ("ada", "ada"), Foreign("ada", Reason.not_offered)),  # kept by others
        ("bob", ("lab",), ("ada", "ada"), Foreign("ada")),
        ("bob", ("other",), ("ada", "ada"), Foreign("ada", Reason.not_offered)),
        ("bob", ("lab",), ("eve", "ada"), Foreign("ada", Reason.other_maker)),
        ("bob", ("lab",), ("eve", "eve"), Foreign("eve", Reason.not_offered)),  # a name that changes hands just now
        ("ada", (), ("", "ada"), Foreign("", Reason.other_maker)),
        ("", (), (None, "ada"), Foreign("", Reason.unknown_maker)),
        ("", (), ("ada", None), Foreign("", Reason.unknown_maker)),
        ("bob", (), (None, ""), Foreign("", Reason.unknown_maker)),
        ("bob", (), ("", ""), NOBODYS),
        ("bob", (), ("ada", ""), Foreign("", Reason.other_maker)),  # the catalog dropped that name
        ("ada", (), ("ada", ""), Foreign("", Reason.other_maker)),
    ],
)
def test_the_judgement(
    person: str | None, groups: tuple[str, ...], makers: tuple[str | None, str | None], judged: Foreign
) -> None:
    assert foreign(person, groups, OWN, makers, vouched=False) == judged


@pytest.mark.parametrize("maker", ["ada", "", None])
def test_a_profile_of_the_catalog_of_today_comes_whoever_made_the_image_before(maker: str | None) -> None:
    assert foreign("bob", (), None, (maker, ""), vouched=True) == NOBODYS


@pytest.mark.parametrize("mode", [Mode.when_idle, Mode.ask, Mode.next_start])
def test_no_policy_moves_somebody_by_force_or_unasked(mode: Mode) -> None:
    asked = candidate(
        by="ada", policy=policy(mode=mode, deadline_days=1, notice_hours=1), notified=NOW - timedelta(days=9)
    )
    assert terms(replace(asked, by=""), NEW, rollout()).deadline is not None
    assert (terms(asked, NEW, rollout()).waits, terms(asked, NEW, rollout()).deadline) == (Reason.ask, None)
