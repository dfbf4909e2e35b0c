"""Differences from snapshots, single files of them, and copies of sessions: by the API, the page and `refit mine`."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from flows.sessions.homes.folders import folder_of
from flows.sessions.model import Running
from tests.support.hub import RELEASE, Hub, Person
from tests.support.machine import FIRST
from tests.support.my_sessions import BASE, api, submit
from tests.support.waiting import wait_until

BAD_PATHS = ("../../etc/passwd", "/etc/passwd", "-rf", "nothing", "$(id)", "a" * 5000)


def home_of(hub: Hub, session: str) -> Path:
    """The folder of a session's home."""
    return folder_of(hub.sessions.homes.home_of(session))


def write(hub: Hub, session: str, name: str, text: str) -> None:
    """Write a file of a home, as the session does."""
    hub.sessions.execute(session, ["sh", "-c", f"printf %s {text} > ~/{name}"])


def test_what_has_changed_is_told_and_single_files_come_back(hub: Hub, ada: Person, eve: Person) -> None:
    mine, hers = api(ada), api(eve)
    write(hub, "ada", "kept", "first")
    assert mine("POST", "/sessions/ada/snapshots", json={"name": "to-compare"}).status_code == HTTPStatus.ACCEPTED
    assert not mine.settled("ada")["doing"]["problem"]
    write(hub, "ada", "kept", "second-and-longer")
    write(hub, "ada", "'<b>new'", "x")
    told = mine("GET", "/sessions/ada/snapshots/differences", params={"snapshot": "to-compare"})
    assert told.status_code == HTTPStatus.OK, told.text
    changes = "\n".join(told.json()["changes"])
    assert "kept" in changes and "<b>new" in changes and not told.json()["more"]
    page = ada.client.get(f"{BASE}/sessions/ada", params={"since": "to-compare"})
    assert "Since to-compare" in page.text and "&lt;b&gt;new" in page.text and "<b>new" not in page.text
    for path in BAD_PATHS:
        given = {"snapshot": "to-compare", "paths": path}
        begun = mine("POST", "/sessions/ada/snapshots/files", json=given)
        assert begun.status_code == HTTPStatus.ACCEPTED, begun.text
        assert mine.settled("ada")["doing"]["problem"], path
    sent = submit(ada, page, "bring-back", "ada", snapshot="to-compare", paths="kept\r\n", page="one")
    assert sent.status_code == HTTPStatus.OK
    assert not mine.settled("ada")["doing"]["problem"]
    assert Path(home_of(hub, "ada"), "kept").read_text() == "first"
    # Nothing of that is anybody else's.
    way = "/sessions/ada/snapshots/differences?snapshot=to-compare"
    assert hers("GET", way).status_code == HTTPStatus.NOT_FOUND
    given = {"snapshot": "to-compare", "paths": "kept"}
    assert hers("POST", "/sessions/ada/snapshots/files", json=given).status_code == HTTPStatus.NOT_FOUND
    assert hers("POST", "/sessions/ada/clone", json={"server": "mine"}).status_code == HTTPStatus.NOT_FOUND
    assert mine("GET", "/sessions/ada/snapshots/differences?snapshot=none").status_code == HTTPStatus.CONFLICT
    assert ada.client.get(f"{BASE}/sessions/ada", params={"since": "none"}).status_code == HTTPStatus.CONFLICT


def test_a_copy_is_another_session_of_its_owner(hub: Hub, ada: Person, eve: Person) -> None:
    mine = api(ada)
    write(hub, "ada", "copied", "it")
    for server in ("", "Big", "../ada", "a" * 31, "-x"):
        refused = mine("POST", "/sessions/ada/clone", json={"server": server})
        assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, server
    refused = mine("POST", "/sessions/ada/clone", json={"server": "copy", "snapshot": "none"})
    assert refused.status_code == HTTPStatus.CONFLICT
    page = ada.client.get(f"{BASE}/sessions/ada")
    assert submit(ada, page, "clone", "ada", server="copy", page="one").status_code == HTTPStatus.OK
    told = mine.settled("ada")["doing"]
    assert not told["problem"] and "ada--copy" in told["note"], told
    copy = mine("GET", "/sessions/ada--copy").json()
    assert (copy["server"], copy["owner"], copy["role"]) == ("copy", "ada", "owner")
    assert hub.sessions.show("ada--copy").running is Running.running
    assert Path(home_of(hub, "ada--copy"), "copied").read_text() == "it"
    wait_until(lambda: hub.server("ada", "copy"))
    assert ada.reaches("/user/ada/copy/api") == "ada--copy"
    again = mine("POST", "/sessions/ada/clone", json={"server": "copy"})
    assert (again.status_code, again.json()["code"]) == (HTTPStatus.CONFLICT, "refused")
    assert eve.client.get("/session/ada--copy/api").status_code == HTTPStatus.FORBIDDEN


def test_a_copy_by_the_form_of_the_hub(hub: Hub, ada: Person, eve: Person) -> None:
    write(hub, "ada", "by-form", "it")
    form = ada.sees("/hub/spawn/ada/formed")
    assert "a copy of that of ada<" in form and "of eve<" not in form
    page = "/hub/spawn/ada/formed"
    ada.send(page, page, profile=f"{RELEASE}/{FIRST}", copy_of="ada")
    assert ada.reaches("/user/ada/formed/api") == "ada--formed"
    assert Path(home_of(hub, "ada--formed"), "by-form").read_text() == "it"
    assert hub.sessions.store.session("ada--formed").uid != hub.sessions.store.session("ada").uid
    # Sessions of others are as if they weren't there.
    theirs = "/hub/spawn/eve/formed"
    told = eve.send(theirs, theirs, profile=f"{RELEASE}/{FIRST}", copy_of="ada").text
    wait_until(lambda: "no session of yours" in eve.sees("/hub/spawn-pending/eve/formed") + told)
    assert not hub.sessions.store.find("eve--formed")
