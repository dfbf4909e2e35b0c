"""Rights to sessions: owner, shares with people and groups, administrators, and ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from flows.core.database import now, open_database
from flows.sessions.events import Kind as Event
from flows.sessions.history import History
from flows.sessions.people import rights as heard_rights
from flows.sessions.people.entitlements import (
    NO_ACCESS,
    Access,
    Account,
    Entitlements,
    Grant,
    Kind,
    Rights,
    Role,
    Share,
    ended,
)
from flows.sessions.people.rights import Heard, as_json, from_json
from flows.sessions.people.share_records import Grants

AT = datetime(2026, 11, 25, 12, tzinfo=UTC)
LATER = AT + timedelta(hours=1)
TO_BOB = Share("ada", "ada", Kind.person, "bob")
TO_CLASS = Share("ada", "ada", Kind.group, "class")
CODE = Share("ada", "ada", Kind.code, "sc_1")


def asked(
    *shares: Share, grants: tuple[Grant, ...] = (), scopes: dict[str, set[str]] | None = None, owner: str = "ada"
) -> Entitlements:
    groups = {"bob": {"class"}, "cyd": {"class"}}
    accounts = {
        name: Account(name, frozenset(groups.get(name, ())), frozenset((scopes or {}).get(name, ())))
        for name in ("ada", "bob", "cyd", "eve", "root")
    }
    members = heard_rights.members(accounts)
    return Entitlements(Rights(accounts, frozenset(shares), members), {"ada": owner}, grants, AT, {"ada": ""})


def grant(share: Share, until: datetime | None, number: int = 1) -> Grant:
    return Grant(number, share.session, share.owner, "", share.kind, share.subject, "ada", AT, until)


def test_an_owner_comes_in_and_nobody_else_without_a_word_of_the_hub() -> None:
    assert asked().may_use("ada", "ada") == Access(Role.owner)
    for nobody in ("bob", "", "ghost"):
        assert asked().may_use(nobody, "ada") == NO_ACCESS
    assert asked().may_use("ada", "other") == NO_ACCESS
    assert asked().usable_by("ada") == {"ada": Access(Role.owner)} and not asked().usable_by("bob")


def test_shares_reach_a_person_and_the_people_of_a_group_and_a_code_reaches_nobody() -> None:
    told = asked(TO_BOB, grants=(grant(TO_BOB, LATER),))
    assert told.may_use("bob", "ada") == Access(Role.shared, LATER, "ada")
    assert not told.may_use("cyd", "ada")
    told = asked(TO_CLASS)
    assert told.may_use("cyd", "ada") == Access(Role.shared, None, "ada", "class")
    assert set(told.people_of("ada")) == {"ada", "bob", "cyd"}
    assert not asked(CODE).usable_by("bob") and asked(CODE).shares_of("ada") == (CODE,)


def test_the_share_that_lasts_longest_counts() -> None:
    both = (grant(TO_BOB, LATER), grant(TO_CLASS, LATER + timedelta(hours=1), 2))
    assert asked(TO_BOB, TO_CLASS, grants=both).may_use("bob", "ada").via == "class"
    assert asked(TO_BOB, TO_CLASS, grants=both[:1]).may_use("bob", "ada").until is None


def test_a_share_ends_at_its_time_whatever_the_hub_says_and_with_another_owner() -> None:
    told = asked(TO_BOB, grants=(grant(TO_BOB, AT),))
    assert not told.may_use("bob", "ada") and not told.shares_of("ada")
    assert not asked(TO_BOB, owner="cyd").may_use("bob", "ada")
    before, pairs = asked(TO_BOB), [("bob", "ada"), ("ada", "ada"), ("cyd", "ada")]
    assert ended(before, told, pairs) == {("bob", "ada")} and not ended(before, before, pairs)


@pytest.mark.parametrize(
    ("scope", "comes_in"),
    [
        ("access:servers", True),
        ("access:servers!user=ada", True),
        ("access:servers!server=ada/", True),
        ("access:servers!group=staff", False),
        ("access:servers!user=bob", False),
        ("access:servers!server=ada/gpu", False),
        ("read:servers", False),
        ("access:services", False),
    ],
)
def test_administrators_come_in_where_their_role_says_so(scope: str, comes_in: bool) -> None:
    told = asked(scopes={"root": {scope}})
    assert told.may_use("root", "ada") == (Access(Role.admin) if comes_in else NO_ACCESS)


def test_a_role_over_a_group_reaches_the_sessions_of_its_people() -> None:
    assert asked(scopes={"root": {"access:servers!group=class"}}, owner="cyd").may_use("root", "ada").role is Role.admin


def test_without_a_hub_owners_alone_count() -> None:
    told = Entitlements(Rights(), {"ada": "ada"}, (), AT)
    assert told.may_use("ada", "ada") and not told.may_use("bob", "ada") and set(told.people_of("ada")) == {"ada"}


def test_what_was_heard_is_the_same_after_it_was_written() -> None:
    told = asked(TO_BOB, CODE, scopes={"root": {"access:servers"}})
    assert from_json(as_json(Heard(told.rights, {"ada": ""}))) == Heard(told.rights, {"ada": ""})


def test_records_of_shares_begin_end_and_are_in_the_history(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'refit.db'}")
    grants = Grants(database)
    first = grants.record(TO_BOB, "", "ada", LATER)
    assert grants.open() == (first,) and first.share == TO_BOB
    assert [one.until for one in (grants.record(TO_BOB, "", "ada", None), *grants.open())] == [None, None]
    assert grants.end(TO_BOB, "ada") and not grants.end(TO_BOB, "ada") and not grants.open()
    again = grants.record(TO_BOB, "", "ada", None)
    assert again.number != first.number and len(grants.of("ada")) == 2
    told = [(event.kind, event.by) for event in History(database).events("ada")]
    assert told == [(Event.shared, "ada"), (Event.shared, "ada"), (Event.unshared, "ada"), (Event.shared, "ada")]


def test_the_history_says_with_whom_a_session_is_shared_and_until_when(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'refit.db'}")
    grants, until = Grants(database), datetime(2026, 12, 24, 18, 30, tzinfo=timezone(timedelta(hours=1)))
    grants.record(TO_BOB, "", "ada", until)
    grants.record(replace(TO_BOB, kind=Kind.group, subject="class"), "", "ada", None)
    grants.record(CODE, "", "ada", None)
    grants.end(CODE, "ada")
    said = [event.what for event in History(database).events("ada")]
    assert said == ["with bob, until 2026-12-24 17:30 UTC", "with the group class", "by a link", "by a link"]


def test_a_code_becomes_a_share_with_its_end_once(tmp_path: Path) -> None:
    grants = Grants(open_database(f"sqlite:///{tmp_path / 'refit.db'}"))
    later = now() + timedelta(hours=1)
    grants.record(CODE, "gpu", "ada", later)
    assert grants.redeem(CODE, "bob")
    [made] = grants.open()
    assert (made.share, made.until, made.server) == (TO_BOB, later, "gpu")
    assert not grants.redeem(CODE, "eve")
    assert [one.share for one in grants.open()] == [TO_BOB]
    grants.record(CODE, "gpu", "ada", now())
    assert not grants.redeem(CODE, "eve")
    grants.end(CODE, "ada")
    for until, then in ((later - timedelta(minutes=1), later), (None, None), (later, None)):
        grants.record(CODE, "gpu", "ada", until)
        assert grants.redeem(CODE, "bob")
        assert [one.until for one in grants.open()] == [then]  # a share that lasts longer is kept


def test_a_visit_is_told_once_and_a_guest_is_told_again_after_a_loss(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'refit.db'}")
    grants, access = Grants(database), Access(Role.shared, via="class")
    for _ in range(3):
        grants.visited("ada", "bob", access)
    [event] = History(database).events("ada")
    assert (event.kind, event.by, event.data) == (Event.visited, "bob", {"role": "shared", "via": "class"})
    assert not grants.was_told("ada", "bob")
    grants.told("ada", "bob")
    assert grants.was_told("ada", "bob") and not grants.was_told("ada", "eve")
    grants.forget_told("ada", "bob")
    assert not grants.was_told("ada", "bob")
