"""The API and the page of people's own sessions, for real: a Hub, its tokens and logins, sessions in containers."""

from __future__ import annotations

from flows.sessions.model import Running
from tests.support.hub import Hub, Person
from tests.support.my_sessions import BASE, api, submit
from tests.support.waiting import wait_until


def test_a_session_is_listed_shown_stopped_and_started_by_its_owner(hub: Hub, ada: Person) -> None:
    mine = api(ada)
    [listed] = mine("GET", "/sessions").json()
    assert (listed["name"], listed["state"], listed["role"], listed["url"]) == (
        "ada",
        "running",
        "owner",
        "/session/ada/",
    )
    assert listed["image"]["digest"] == hub.image and listed["title"].startswith("JupyterLab")
    begun = mine("POST", "/sessions/ada/stop")
    assert (begun.status_code, begun.json()["state"]) == (202, "stopping")
    again = mine("POST", "/sessions/ada/start")
    assert again.status_code in (202, 409)
    stopped = mine.settled("ada")
    assert stopped["state"] == "stopped" and hub.sessions.show("ada").running is Running.stopped
    assert mine("POST", "/sessions/ada/start").status_code == 202
    started = mine.settled("ada")
    assert (started["state"], started["doing"]["note"]) == ("running", "It runs.")
    assert hub.sessions.show("ada").running is Running.running


def test_a_page_shows_a_persons_sessions_and_its_forms_act(hub: Hub, ada: Person) -> None:
    page = ada.client.get(f"{BASE}/")
    assert page.status_code == 200 and ">ada</h3>" in page.text and 'href="/session/ada/"' in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    sent = submit(ada, page, "stop", "ada")
    assert sent.status_code == 200 and "stopping" in sent.text
    wait_until(lambda: hub.sessions.show("ada").running is Running.stopped)
    wait_until(lambda: "/do/start" in ada.sees(f"{BASE}/"))
    submit(ada, ada.client.get(f"{BASE}/"), "start", "ada")
    wait_until(lambda: "/do/stop" in ada.sees(f"{BASE}/"))
    assert hub.sessions.show("ada").running is Running.running
