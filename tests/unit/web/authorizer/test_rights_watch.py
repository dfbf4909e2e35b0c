"""The authorizer's view of the Hub's people: whose sessions are open to whom, and who has to leave."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from flows.catalog.model import Access as Reached
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.gateway.proxy import Visit
from flows.sessions.model import HomeRef, Session, TokenRef
from flows.sessions.people.entitlements import Entitlements, Kind, Share
from flows.sessions.store import Store
from flows.sessions.wishes import PreferenceStore
from flows.web.authorizer import passes
from flows.web.authorizer.rights_watch import RightsWatch, heard, is_older, to_be_ended
from flows.web.people.client import HubClient
from flows.web.people.servers import Servers

AT = datetime(2026, 11, 25, 12, tzinfo=UTC)


def session(name: str) -> Session:
    return Session(name, "p", "2026a", "sha256:1", 200_000, HomeRef("/h"), TokenRef("/h"), Reached(port=8000), {})


def account(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "groups": [], "scopes": [], "logins": {f"{name}-browser": None}, **more}


TOLD: dict[str, Any] = {
    "version": "x.1",
    "accounts": [
        account("ada", logins={"ada-browser": None, "ada-old": "2026-11-25T11:59:59+00:00"}),
        account("bob", groups=["class"]),
        account("eve"),
        account("root", scopes=["access:servers"]),
    ],
    "shares": [["ada", "notes", "group", "class"], ["ada", "gone", "person", "eve"], ["ada", "", "code", "sc_1"]],
}
OWNED = {"ada": {"": session("ada"), "notes": session("notes")}}


def entitlements(told: dict[str, Any]) -> Entitlements:
    rights = heard(told, OWNED)
    return Entitlements(rights.rights, {"ada": "ada", "notes": "ada"}, (), AT, rights.servers)


def test_shares_of_servers_are_shares_of_their_sessions_and_those_without_one_are_nobodys() -> None:
    rights = heard(TOLD, OWNED)
    assert rights.rights.shares == {
        Share("notes", "ada", Kind.group, "class"),
        Share("ada", "ada", Kind.code, "sc_1"),
    }
    assert rights.servers == {"ada": "", "notes": "notes"}
    asked = entitlements(TOLD)
    assert {one: sorted(asked.people_of(one)) for one in ("ada", "notes")} == {
        "ada": ["ada", "root"],
        "notes": ["ada", "bob", "root"],
    }


def test_those_leave_who_lost_their_share_their_login_or_their_account() -> None:
    visits = tuple(Visit("notes", person, f"{person}-browser") for person in ("ada", "bob", "root"))
    old = (Visit("notes", "ada", "ada-old"), Visit("ada", "bob", "bob-browser"), Visit("ada", "ghost", "x"))
    assert to_be_ended((*visits, *old), entitlements(TOLD)) == old
    assert to_be_ended(visits, entitlements({**TOLD, "shares": []})) == visits[1:2]
    without = {**TOLD, "accounts": [one for one in TOLD["accounts"] if one["name"] != "bob"]}
    assert to_be_ended(visits, entitlements(without)) == visits[1:2]
    logged_out = {**TOLD, "accounts": [account("ada", logins={}), *TOLD["accounts"][1:]]}
    assert to_be_ended(visits, entitlements(logged_out)) == visits[:1]


def test_a_pass_has_the_name_that_no_other_host_can_set_where_there_is_tls() -> None:
    assert passes.cookie(secure=True) == ("__Host-refit-pass", "/")
    assert passes.cookie(secure=False) == ("refit-pass", "/session/")


def test_somebody_who_has_handed_a_session_over_leaves_whatever_they_may_still() -> None:
    shared = {**TOLD, "shares": [["ada", "notes", "person", "bob"]]}
    visit = Visit("notes", "bob", "bob-browser")
    assert to_be_ended([visit], entitlements(shared)) == ()
    assert to_be_ended([visit], entitlements(shared), {"notes": "ada"}) == ()
    assert to_be_ended([visit], entitlements(shared), {"notes": "bob"}) == (visit,)


@pytest.mark.parametrize(
    ("version", "other", "older"),
    [
        ("x.1", "x.2", True),
        ("x.9", "x.10", True),
        ("x.2", "x.2", False),
        ("x.3", "x.2", False),
        ("y.1", "x.2", False),  # the Hub was started again
        ("x.1", "", False),
        ("", "x.2", False),
        ("x", "x.2", False),
    ],
)
def test_an_answer_that_comes_late_is_known_by_its_version(version: str, other: str, *, older: bool) -> None:
    assert is_older(version, other) is older


class StandInHub:
    """Tells what it was given."""

    told = TOLD

    def rights(self) -> dict[str, Any]:
        """Its word on people."""
        return self.told


def add(store: Store, name: str, owner: str) -> None:
    """A session on record."""
    store.add(name, lambda uid: replace(session(name), uid=uid), uids=Span(first=300_000, last=300_999), owner=owner)


def test_rights_are_read_once_for_as_long_as_nobody_changes_any_and_time_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, hub=True, gateway=True)
    database, elsewhere, hub = open_database(settings.database), open_database(settings.database), StandInHub()
    settings.folder("services", "authorizer")
    add(Store(database), "ada", "ada")
    watch = RightsWatch(settings, database, Servers(settings), cast(HubClient, hub))
    reads, owners = list[None](), Store.owners
    monkeypatch.setattr(Store, "owners", lambda store: (reads.append(None), owners(store))[1])

    assert not watch.now(fresh=True).may_use("ada", "ada")
    watch.refresh()
    first, read = watch.now(fresh=True), len(reads)
    assert first.may_use("ada", "ada") and not first.may_use("bob", "ada")
    later = watch.now(fresh=True)
    assert later == replace(first, at=later.at) and later.at > first.at and len(reads) == read, "nothing has changed"

    add(Store(elsewhere), "own", "bob")
    assert watch.now(fresh=True).may_use("bob", "own")
    PreferenceStore(elsewhere).change("own", "root", owner="ada")
    assert not watch.now(fresh=True).may_use("bob", "own") and watch.now(fresh=True).may_use("ada", "own")

    for number, shares in enumerate(([["ada", "", "person", "bob"]], []), 2):
        hub.told = {**TOLD, "version": f"x.{number}", "shares": shares}
        watch.refresh()
        assert bool(watch.now(fresh=True).may_use("bob", "ada")) is bool(shares)
