"""Records of people's own profiles: names, limits, offers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.leases import lease
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.publishing import own_images
from flows.publishing.own_profiles import (
    LimitReached,
    NotYours,
    OwnProfile,
    OwnProfiles,
    RoomUsed,
    queued,
    repository,
)
from flows.publishing.prune import Stored

LIMITS = PersonalBuilds(profiles=2, builds_a_day=2)
MINE = OwnProfile("mine", "ada", "runtime-mine-deb12-py311", "2026a", {"display.txt": b"x"}, (), now())


@pytest.fixture
def records(settings: Settings) -> OwnProfiles:
    return OwnProfiles(open_database(settings.database))


def another(name: str, owner: str = "ada") -> OwnProfile:
    return replace(MINE, bundle=name, owner=owner, profile=f"runtime-{name}-deb12-py311")


def test_a_name_is_one_persons(records: OwnProfiles) -> None:
    records.take(MINE, LIMITS)
    with pytest.raises(NotYours, match="is taken"):
        records.take(another("mine", "bob"), LIMITS)
    records.take(replace(MINE, files={"display.txt": b"y"}), LIMITS)
    assert records.get("mine").files == {"display.txt": b"y"}
    assert records.get(MINE.profile).owner == "ada" and records.owners() == {MINE.profile: "ada"}


def test_of_many_who_want_a_name_at_once_one_gets_it(records: OwnProfiles) -> None:
    def take(number: int) -> bool:
        try:
            records.take(another("wanted", f"person{number}"), LIMITS)
        except NotYours:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(8))) == 1


def test_a_person_has_so_many_and_no_more(records: OwnProfiles) -> None:
    for name in ("one", "two"):
        records.take(another(name), LIMITS)
    with pytest.raises(LimitReached):
        records.take(another("three"), LIMITS)
    records.forget("one", "ada")
    records.take(another("three"), LIMITS)
    assert [own.bundle for own in records.all("ada")] == ["three", "two"] and records.all("bob") == ()


def test_an_offer_is_its_owners_word_and_outlives_a_change(records: OwnProfiles) -> None:
    records.take(MINE, LIMITS)
    with pytest.raises(NotYours):
        records.offer("mine", "bob", ("staff",))
    assert records.offer("mine", "ada", ("staff", "lab")).offered == ("lab", "staff")
    records.take(replace(MINE, files={}), LIMITS)
    assert records.get("mine").offered == ("lab", "staff")
    assert records.offer("mine", "ada", ()).offered == ()


def test_builds_of_a_day_are_counted(records: OwnProfiles) -> None:
    for _ in range(2):
        build, left = records.begin("mine", "ada", LIMITS)
        assert 0 < left <= 7200
        records.end(build, "it failed")
    with pytest.raises(LimitReached):
        records.begin("mine", "ada", LIMITS)
    records.begin("other", "bob", LIMITS)
    assert records.last_builds()["mine"].problem == "it failed" and records.last_builds()["other"].ended is None


def test_hours_of_a_day_are_counted(records: OwnProfiles) -> None:
    with pytest.raises(LimitReached):
        records.begin("mine", "ada", PersonalBuilds(hours_a_day=0))


@pytest.mark.parametrize("owner", ["../x", "Ada", "a/b", "", "a" * 65, "stages/x", "a..b", "-a"])
def test_no_owner_leads_out_of_their_repository(owner: str) -> None:
    with pytest.raises(RefitError, match="no profiles of their own"):
        repository("images", owner)
    assert repository("images", "ada.l-x_y") == "images/people/ada.l-x_y"


def test_the_queue_is_seen_while_it_lasts(records: OwnProfiles) -> None:
    records.take(MINE, LIMITS)
    assert records.builds() == {}
    with lease(records.database, queued("mine")):
        assert records.builds() == {"mine": False}
        with lease(records.database, "own-builds-of/ada"):
            build, _ = records.begin("mine", "ada", LIMITS)
            assert records.builds() == {"mine": True}
            records.end(build)
        assert records.builds() == {"mine": False}
    assert records.builds() == {}


def test_the_images_of_a_person_have_a_limit_together_and_a_shared_layer_counts_once() -> None:
    def stored(digest: str, **layers: int) -> Stored:
        return Stored("images/people/ada", digest, layers=layers)

    limits = PersonalBuilds(images_gb=3.0)
    base = 2 * 10**9
    own_images.check_size([stored("one", base=base, own=10**8), stored("two", base=base, more=10**8)], "ada", limits)
    with pytest.raises(RoomUsed, match=r"The images of ada have 3\.1 GB, and may have 3"):
        own_images.check_size([stored("one", base=base, own=10**8), stored("two", other=10**9)], "ada", limits)
    own_images.check_size([], "ada", limits)


def test_offers_to_groups_end_one_by_one_and_operators_vouch_for_theirs(records: OwnProfiles) -> None:
    records.take(MINE, LIMITS)
    records.offer("mine", "ada", ("lab", "team", "all"), ("kai",), vouched=("all", "elsewhere"))
    [offer] = records.offered()
    assert (offer.groups, offer.people, offer.vouched) == (("all", "lab", "team"), ("kai",), ("all",))
    assert records.end_offers("mine", "bob", ("lab",)) == ()  # the name is another person's by now
    assert records.end_offers("mine", "ada", ("lab", "none")) == ("lab",)
    assert records.end_offers("mine", "ada", ("lab",)) == ()
    kept = records.get("mine")
    assert (kept.offered, kept.people, kept.vouched) == (("all", "team"), ("kai",), ("all",))
    records.take(replace(MINE, files={"display.txt": b"y"}), LIMITS)  # a new recipe changes no offer
    assert records.get("mine").offered == ("all", "team")


def test_with_a_person_their_offers_go_and_those_to_them_by_name(records: OwnProfiles) -> None:
    records.take(MINE, LIMITS)
    records.take(another("other", "bob"), LIMITS)
    records.offer("mine", "ada", ("lab",), ("kai",), vouched=("lab",))
    records.offer("other", "bob", ("lab",), ("ada", "kai"))
    records.leave("ada")
    assert [(one.bundle, one.groups, one.people) for one in records.offered()] == [("other", ("lab",), ("kai",))]
    assert records.get("mine").owner == "ada"
