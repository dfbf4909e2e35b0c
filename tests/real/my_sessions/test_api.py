"""The API and the page of people's own sessions, for real: a Hub, its tokens and logins, sessions in containers."""

from __future__ import annotations

from datetime import timedelta

import httpx

from flows.core.database import now
from flows.images.build import Built
from flows.sessions.model import Running
from flows.web.my_sessions.verbs.table import BY_NAME, VERBS
from flows.web.people.scopes import Scope
from tests.support.hub import RELEASE, Hub, Person, made, publish
from tests.support.machine import FIRST
from tests.support.my_sessions import BASE, api, submit
from tests.support.variants import LIGHT
from tests.support.waiting import PATIENTLY, wait_until


def test_a_session_is_listed_shown_stopped_and_started_by_its_owner(hub: Hub, ada: Person) -> None:
    mine = api(ada)
    [listed] = [one for one in mine("GET", "/sessions").json() if one["name"] == "ada"]
    assert (listed["name"], listed["state"], listed["role"], listed["url"]) == (
        "ada",
        "running",
        "owner",
        "/session/ada/",
    )
    assert listed["image"]["digest"] == hub.image and listed["title"].startswith("JupyterLab")
    begun = mine("POST", "/sessions/ada/stop")
    assert begun.status_code == 202 and begun.json()["state"] in ("stopping", "stopped")
    again = mine("POST", "/sessions/ada/start")
    assert again.status_code in (202, 409)
    if again.status_code == 202:  # it had stopped by then
        assert mine.settled("ada")["state"] == "running"
        assert mine("POST", "/sessions/ada/stop").status_code == 202
    stopped = mine.settled("ada")
    assert stopped["state"] == "stopped" and hub.sessions.show("ada").running is Running.stopped
    assert mine("POST", "/sessions/ada/start").status_code == 202
    started = mine.settled("ada")
    assert (started["state"], started["doing"]["note"]) == ("running", "It runs.")
    assert hub.sessions.show("ada").running is Running.running


def test_a_page_shows_a_persons_sessions_and_its_forms_act(hub: Hub, ada: Person) -> None:
    page = ada.client.get(f"{BASE}/")
    assert page.status_code == 200 and ">ada</a></h3>" in page.text and 'href="/session/ada/"' in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    sent = submit(ada, page, "stop", "ada")
    assert sent.status_code == 200 and ("stopping" in sent.text or "/do/start" in sent.text)
    wait_until(lambda: hub.sessions.show("ada").running is Running.stopped)
    wait_until(lambda: "/do/start" in ada.sees(f"{BASE}/"))
    submit(ada, ada.client.get(f"{BASE}/"), "start", "ada")
    wait_until(lambda: "/do/stop" in ada.sees(f"{BASE}/"))
    assert hub.sessions.show("ada").running is Running.running


def test_a_move_is_put_off_pinned_and_made_at_once_as_its_owner_says(hub: Hub, base: Built) -> None:
    cyd = hub.person("cyd")
    hub.sessions.create("cyd", FIRST, RELEASE, hub.image, LIGHT, owner="cyd")
    mine = api(cyd)
    assert mine("GET", "/sessions/cyd").json()["update"]["image"] is None
    assert mine("POST", "/sessions/cyd/move").json()["code"] == "refused"
    newer = made(hub.settings, base, "another")
    publish(hub.settings, newer, "20261125")
    wait_until(lambda: mine("GET", "/sessions/cyd").json()["update"]["image"] is not None)
    ahead = mine("GET", "/sessions/cyd").json()["update"]
    assert (ahead["image"]["digest"], ahead["mode"], ahead["reason"]) == (newer, "when-idle", None)
    assert mine("POST", "/sessions/cyd/snooze", json={"duration": "1d"}).json()["update"]["reason"] == "snoozed"
    day = str(now().date() + timedelta(days=3))
    pinned = mine("POST", "/sessions/cyd/mode", json={"mode": "pin", "day": day}).json()["update"]
    assert (pinned["reason"], pinned["until"], pinned["chosen"]) == ("pinned", day, True)
    page = cyd.client.get(f"{BASE}/sessions/cyd")
    assert "You have pinned it" in page.text and "/do/move" in page.text
    assert submit(cyd, page, "move", "cyd", page="one").status_code == 200
    moved = mine.settled("cyd")
    assert moved["doing"]["note"].startswith("It runs on its new image."), moved
    assert (moved["image"]["digest"], moved["update"]["image"], moved["state"]) == (newer, None, "running")
    happened = mine("GET", "/sessions/cyd/history").json()
    assert [one["kind"] for one in happened if one["kind"].startswith("move ")] == ["move cleaned"]
    assert {one["by"] for one in happened if one["kind"] == "wish changed"} == {"cyd"}
    assert "GET" in mine("GET", "/sessions/cyd/logs?lines=5").json()["text"]
    assert any(one["profile"] == FIRST and not one["why_not"] for one in mine("GET", "/profiles").json())


def test_the_description_names_each_verb_with_its_scope(hub: Hub) -> None:
    told = httpx.get(f"{hub.settings.gateway_url}{BASE}/openapi.json", **PATIENTLY).json()
    operations = {one["operationId"]: one for path in told["paths"].values() for one in path.values()}
    assert set(operations) == set(BY_NAME)
    assert operations["move"]["security"] == [{"token": [Scope.updates]}]
    assert {"MySession", "Problem", "Update"} <= told["components"]["schemas"].keys()
    for verb in VERBS:
        assert verb.button == "" or verb.method == "POST"  # each form of a page is a verb of the API
