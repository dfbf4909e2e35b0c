"""Offers of people's own profiles: to whom, and as what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flows.core.database import now, open_database
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.migrations.start_sessions import named
from flows.publishing.own_profiles import OfferedTo, OwnProfile, OwnProfiles
from flows.sessions.people.entitlements import Account, Rights
from flows.web.people import own_offers
from flows.web.people.own_offers import end_over, ended, offers_to, packages_of
from flows.web.people.servers import Servers, Wanted
from tests.support.machine import ROOT

FILES = {
    "display.txt": b"Tools\n",
    "bundle.yaml": b"extends: minimal\n",
    "py311/Pipfile": b'[packages]\niniconfig = "~=2.0"\n"b" = "*"\n\n[requires]\npython_version = "3.11"\n',
}
MINE = OwnProfile("mine", "ada", "jupyter-mine-deb12-py311", "2026a", FILES, ("lab", "team"), now())


@pytest.mark.parametrize(
    ("person", "groups", "may"),
    [
        ("ada", (), True),
        ("bob", ("lab",), True),
        ("bob", ("other", "team"), True),
        ("bob", ("labs", ""), False),
        ("lab", (), False),
        ("", (), False),
    ],
)
def test_its_owner_and_members_of_its_groups_may_start_it(person: str, groups: tuple[str, ...], may: bool) -> None:
    assert MINE.may_be_started_by(person, groups) is may


def test_its_packages_are_named() -> None:
    assert packages_of(MINE) == ("b", "iniconfig")


@pytest.mark.parametrize(
    ("accounts", "gone"),
    [
        ({"ada": Account("ada", frozenset({"lab", "team"}))}, ()),
        ({"ada": Account("ada", frozenset({"team"}))}, ("lab",)),
        ({"ada": Account("ada")}, ("lab", "team")),
        ({}, ()),  # an operator builds for somebody whom the Hub doesn't know
        (None, ()),  # there is no Hub
    ],
)
def test_an_offer_to_a_group_ends_when_its_owner_leaves_unless_an_operator_made_it(
    accounts: dict[str, Account] | None, gone: tuple[str, ...]
) -> None:
    offer = OfferedTo("mine", "ada", ("all", "lab", "team"), ("kai",), ("all",))
    assert ended(offer, Rights(accounts)) == gone


def test_offers_that_ended_stay_ended_when_their_owner_comes_back(settings: Settings) -> None:
    records, lab = OwnProfiles(open_database(settings.database)), Account("ada", frozenset({"lab"}))
    records.take(MINE, PersonalBuilds())
    records.offer("mine", "ada", ("lab",), ("kai",))
    end_over(records, Rights({"ada": lab}), frozenset())
    assert records.get("mine").offered == ("lab",)
    for account in (Account("ada"), lab):
        end_over(records, Rights({"ada": account}), frozenset())
        assert (records.get("mine").offered, records.get("mine").people) == ((), ("kai",))
    end_over(records, Rights({}), frozenset({"kai"}))
    assert records.offered() == ()


def test_a_profile_of_the_catalog_comes_before_one_of_its_name_that_a_person_had(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, asked = settings.model_copy(update={"catalog": ROOT}), list[tuple[str, str]]()

    def images(names: Sequence[tuple[str, str]], *_: object) -> dict[tuple[str, str], object]:
        asked.extend(names)
        return {}

    monkeypatch.setattr(own_offers, "newest_images", images)
    records = OwnProfiles(open_database(own.database))
    for bundle in ("mine", "minimal"):
        taken = OwnProfile(bundle, "ada", f"jupyter-{bundle}-deb12-py311", "2026a", FILES, (), now())
        records.take(taken, PersonalBuilds())
    assert [offer.profile for offer in offers_to(own, "ada", ())] == ["jupyter-mine-deb12-py311"]
    assert asked == [("jupyter-mine-deb12-py311", "2026a")]
    described = Servers(own)._profile("ada", Wanted("jupyter-minimal-deb12-py311", "2026a"), ())
    assert not described.bundle.owner
    assert named(own, "2026a", "jupyter-minimal-deb12-py311").bundle.owner == ""
    assert named(own, "2026a", "jupyter-mine-deb12-py311").bundle.owner == "ada"
