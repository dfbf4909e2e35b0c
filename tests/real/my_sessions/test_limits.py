"""Limits of a person, for real: a group of the Hub, its form, the page and the API, and two who begin at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.model import Running
from flows.web.people import client
from tests.support.hub import RELEASE, Hub, Person
from tests.support.machine import FIRST
from tests.support.my_sessions import BASE, api, refit
from tests.support.pools import unmount
from tests.support.variants import LIGHT
from tests.support.waiting import PATIENTLY, wait_until

CHOICE = {"profile": FIRST, "release": RELEASE}


@pytest.fixture(scope="module")
def admin(hub: Hub) -> Person:
    """Somebody who puts people into groups."""
    return hub.person("boss", "--admin")


def owned(hub: Hub, person: str) -> set[str]:
    return {name for name, owner in hub.sessions.store.owners().items() if owner == person}


def join(admin: Person, group: str, person: Person) -> None:
    admin.api("POST", f"/groups/{group}")
    assert admin.api("POST", f"/groups/{group}/users", users=[person.name]).status_code == 200


def test_a_person_is_told_of_limits_and_never_gets_past_them(hub: Hub, admin: Person) -> None:
    ann = hub.person("ann")
    hub.sessions.create("ann", FIRST, RELEASE, hub.image, LIGHT, owner="ann")
    mine = api(ann)
    assert mine("GET", "/limits").json()["text"] == ""
    join(admin, "two", ann)
    wait_until(lambda: mine("GET", "/limits").json()["text"] == "You have 1 of 2 sessions.")
    assert "You have 1 of 2 sessions." in ann.sees(f"{BASE}/") and "You have 1 of 2" in ann.sees("/hub/spawn/ann/a")
    # The check of the API passes for both: the last place is given under the lease.
    with ThreadPoolExecutor(2) as pool:
        begun = list(pool.map(lambda name: mine("POST", "/sessions", json={**CHOICE, "server": name}), "ab"))
    assert {one.status_code for one in begun} <= {202, 409}
    wait_until(lambda: len(owned(hub, "ann")) == 2 and not any(_pending(hub, name) for name in "ab"))
    third = mine("POST", "/sessions", json={**CHOICE, "server": "c"})
    assert (third.status_code, third.json()["code"]) == (409, "limit"), third.text
    assert (
        third.json()["detail"] == "You have 2 sessions, and may have 2." and "remove a session" in third.json()["hint"]
    )
    assert "not available: You can&#39;t have another session now." in ann.sees(f"{BASE}/")
    assert "You can&#39;t have another session now." in ann.sees("/hub/spawn/ann/c")
    sent = ann.start("c")  # as a form that was opened before would
    wait_until(lambda: not _pending(hub, "c"))
    told = sent.text + ann.sees("/hub/spawn-pending/ann/c")  # where the Hub was slow, the first page says "pending"
    assert "You have 2 sessions, and may have 2." in told and "remove a session" in told
    assert len(owned(hub, "ann")) == 2
    # The operator's shell has no limits.
    hub.sessions.create("ann--by-root", FIRST, RELEASE, hub.image, LIGHT, owner="ann")


def test_a_session_that_takes_too_much_stays_stopped(hub: Hub, admin: Person) -> None:
    ben = hub.person("ben")
    hub.sessions.create("ben", FIRST, RELEASE, hub.image, LIGHT, owner="ben")
    mine = api(ben)
    join(admin, "little", ben)
    wait_until(lambda: mine("GET", "/limits").json()["text"] != "")
    assert mine("POST", "/sessions/ben/stop").status_code == 202
    assert mine.settled("ben")["state"] == "stopped"
    refused = mine("POST", "/sessions/ben/start")
    assert (refused.status_code, refused.json()["code"]) == (409, "limit")
    assert "0.001 GB of memory" in refused.json()["detail"]
    ben.client.get("/hub/spawn/ben")  # the Hub starts it without a form
    wait_until(lambda: not _pending(hub, "", "ben"))
    assert hub.sessions.show("ben").running is not Running.running
    assert admin.api("DELETE", "/groups/little/users", users=["ben"]).status_code == 200
    wait_until(lambda: mine("GET", "/limits").json()["text"] == "")
    assert mine("POST", "/sessions/ben/start").status_code == 202
    assert mine.settled("ben")["state"] == "running"


@pytest.fixture
def pool(hub: Hub) -> Iterator[Pool]:
    """A pool for the homes that are made meanwhile."""
    pool = Pool(hub.settings)
    pool.create(LEAST)
    yield pool
    hub.sessions.remove("finn", purge=True)
    unmount(pool.folder)  # the page may be looking at the sizes of homes
    (hub.settings.home / "pool.btrfs").unlink()


def test_the_disk_of_a_home_is_told_beside_its_limit(hub: Hub, admin: Person, pool: Pool, tmp_path: Path) -> None:
    finn = hub.person("finn")
    join(admin, "roomy", finn)
    mine = api(finn)
    assert mine("POST", "/sessions", json={**CHOICE, "server": ""}).status_code == 202
    wait_until(lambda: "finn" in owned(hub, "finn") and not _pending(hub, "", "finn"))
    [use] = mine("GET", "/sessions/finn").json()["disk"]
    assert use["volume"] == "" and use["allowed"] == 250_000_000 and use["used"] < 250_000_000, use
    limits = mine("GET", "/limits").json()
    assert limits["homes"] == {"count": 1, "kept": 0, "most": 250_000_000}
    for page in (f"{BASE}/", f"{BASE}/sessions/finn"):
        assert " of 0.25 GB" in finn.sees(page), page
    assert "You have 1 home; each home and volume may take 0.25 GB of disk." in finn.sees(f"{BASE}/")
    login = tmp_path / "refit" / "login.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"url": hub.settings.gateway_url, "token": mine.token}))
    for words, told in ((("show", "finn"), "of 0.25 GB"), (("limits",), "may take 0.25 GB")):
        shown = refit(tmp_path, "mine", *words)
        assert told in " ".join(shown.stdout.split()), shown.stdout + shown.stderr


def _pending(hub: Hub, server: str, person: str = "ann") -> bool:
    """Whether the Hub is about to start or to stop a server."""
    headers = {"Authorization": f"token {client.token(hub.settings)}"}
    told = httpx.get(f"{hub.settings.hub_url}/hub/api/users/{person}", headers=headers, **PATIENTLY).json()
    return bool((told.get("servers") or {}).get(server, {}).get("pending"))
