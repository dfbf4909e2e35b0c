"""Shares, snapshots and keys by the API and by forms of the page, for their owner alone."""

from __future__ import annotations

import re
import subprocess
from html import unescape
from pathlib import Path

from flows.sessions.homes.folders import folder_of
from tests.support.hub import RELEASE, Hub, Person
from tests.support.machine import FIRST
from tests.support.my_sessions import BASE, Api, api, submit
from tests.support.waiting import wait_until


def seen_by(asked: Api) -> set[str]:
    return {one["name"] for one in asked("GET", "/sessions").json()}


def test_a_session_is_shared_and_taken_back(hub: Hub, ada: Person, eve: Person) -> None:
    mine, hers = api(ada), api(eve)
    assert hers("POST", "/sessions/ada/shares", json={"subject": "eve"}).status_code == 404
    made = mine("POST", "/sessions/ada/shares", json={"subject": "eve", "duration": "2h"})
    assert made.status_code == 200 and made.json()["until"], made.text
    assert [(one["kind"], one["subject"], one["by"]) for one in mine("GET", "/sessions/ada/shares").json()] == [
        ("person", "eve", "ada")
    ]
    wait_until(lambda: seen_by(hers) == {"ada", "eve"})
    # A guest uses a session, and neither shares it on nor sees with whom it is shared.
    assert hers("POST", "/sessions/ada/shares", json={"kind": "code"}).status_code == 403
    assert hers("GET", "/sessions/ada/shares").status_code == hers("GET", "/sessions/ada/snapshots").status_code == 403
    page = ada.client.get(f"{BASE}/sessions/ada")
    assert "End the share of eve" in page.text
    assert submit(ada, page, "unshare", "ada", kind="person", subject="eve", page="one").status_code == 200
    wait_until(lambda: seen_by(hers) == {"eve"})
    for bad in ({"subject": "nobody-here"}, {"subject": "ada"}, {"subject": "eve", "duration": "never"}, {}):
        assert mine("POST", "/sessions/ada/shares", json=bad).status_code in (409, 422), bad


def test_a_link_is_shown_once_and_lets_the_first_in(ada: Person, eve: Person) -> None:
    page = ada.client.get(f"{BASE}/sessions/ada")
    shown = submit(ada, page, "share", "ada", kind="code", subject="", duration="1d", page="one")
    [link] = re.findall(r"<code>(http[^<]+accept-share[^<]+)</code>", shown.text)
    assert link.partition("code=")[2] not in ada.client.get(f"{BASE}/sessions/ada").text
    [code] = api(ada)("GET", "/sessions/ada/shares").json()
    assert code["kind"] == "code" and code["until"]
    ended = api(ada)("POST", "/sessions/ada/unshare", json={"kind": "code", "subject": code["subject"]})
    assert ended.json() == {"ended": True}
    assert not api(ada)("GET", "/sessions/ada/shares").json() and seen_by(api(eve)) == {"eve"}


def test_a_snapshot_is_taken_and_the_way_back_is_confirmed(hub: Hub, ada: Person) -> None:
    mine = api(ada)
    home = folder_of(hub.sessions.homes.home_of("ada"))
    Path(home, "before").write_text("1")
    assert mine("POST", "/sessions/ada/snapshots", json={"name": "before-it"}).status_code == 202
    assert "before-it" in mine.settled("ada")["doing"]["note"]
    assert "before-it" in {one["name"] for one in mine("GET", "/sessions/ada/snapshots").json()}
    Path(home, "before").write_text("2")
    for confirm in ("", "eve", "before-it"):
        refused = mine("POST", "/sessions/ada/rollback", json={"snapshot": "before-it", "confirm": confirm})
        assert (refused.status_code, refused.json()["code"]) == (409, "unconfirmed")
    page = ada.client.get(f"{BASE}/sessions/ada")
    sent = submit(ada, page, "roll-back", "ada", snapshot="before-it", confirm="ada", force="true", page="one")
    assert sent.status_code == 200
    told = mine.settled("ada")["doing"]
    assert not told["problem"], told
    assert Path(hub.sessions.homes.home_of("ada"), "before").read_text() == "1"
    for confirm in ("", "ada"):
        refused = mine("POST", "/sessions/ada/snapshots/remove", json={"snapshot": "before-it", "confirm": confirm})
        assert (refused.status_code, refused.json()["code"]) == (409, "unconfirmed")
    page = ada.client.get(f"{BASE}/sessions/ada")
    sent = submit(ada, page, "remove-snapshot", "ada", snapshot="before-it", confirm="before-it", page="one")
    assert sent.status_code == 200 and not mine.settled("ada")["doing"]["problem"]
    assert "before-it" not in {one["name"] for one in mine("GET", "/sessions/ada/snapshots").json()}


def test_keys_are_ones_own(tmp_path: Path, ada: Person, eve: Person) -> None:
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-C", "laptop", "-f", tmp_path / "key"], check=True)
    public, mine, hers = (tmp_path / "key.pub").read_text(), api(ada), api(eve)
    page = ada.client.get(f"{BASE}/")
    assert submit(ada, page, "add-keys", "", keys=public, page="mine").status_code == 200
    [key] = mine("GET", "/keys").json()
    assert key["title"] == "laptop" and key["fingerprint"] in ada.client.get(f"{BASE}/").text
    shown = unescape(ada.client.get(f"{BASE}/").text)
    told = mine("GET", "/ssh-config").json()
    assert told["script"].strip() in shown and "Host *.refit" in shown and told["host"] in told["script"]
    elsewhere = mine("GET", "/ssh-config?host=refit.example&port=7&forward_agent=true").json()["script"]
    assert all(line in elsewhere for line in ("HostName refit.example", "Port 7", "ForwardAgent yes"))
    assert mine("GET", "/ssh-config?host=a%0AProxyCommand%20id").status_code == 422
    assert hers("POST", "/keys", json={"keys": public}).status_code == 409
    assert hers("POST", "/keys/remove", json={"key": key["fingerprint"]}).status_code == 409
    assert hers("GET", "/keys").json() == []
    for bad in ("", "x", (tmp_path / "key").read_text(), f'command="id" {public}'):
        assert mine("POST", "/keys", json={"keys": bad}).status_code in (409, 422), bad
    assert mine("POST", "/keys/remove", json={"key": "laptop"}).json() == []


def test_another_session_begins_by_a_form(hub: Hub, eve: Person) -> None:
    hers, page = api(eve), eve.client.get(f"{BASE}/")
    profile = {"profile": FIRST, "release": RELEASE}
    for bad in ({"server": "Big Data"}, {"server": "a" * 31}, {"server": "../ada"}, {"profile": "nothing"}):
        refused = hers("POST", "/sessions", json={**profile, "server": "more", **bad})
        assert refused.status_code in (409, 422), (bad, refused.text)
    sent = submit(eve, page, "create", "", server="more", chosen=f"{RELEASE}/{FIRST}", page="mine")
    # The Hub's page shows how far it is, and leads into the session as soon as that is there.
    assert sent.url.path in ("/hub/spawn-pending/eve/more", "/session/eve--more/"), sent.url

    def states() -> set[str]:
        return {one["state"] for one in hers("GET", "/sessions").json() if one["server"] == "more"}

    wait_until(lambda: "running" in states())
    again = hers("POST", "/sessions", json={**profile, "server": "more"})
    assert (again.status_code, again.json()["code"]) == (409, "refused")
    [made] = [one["name"] for one in hers("GET", "/sessions").json() if one["server"] == "more"]
    assert hub.sessions.store.owners()[made] == "eve"
