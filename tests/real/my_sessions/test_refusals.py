"""Whom the page and the API refuse: no token, a forged one, another person's, one with too few scopes, a script."""

from __future__ import annotations

import time

import httpx
import pytest

from flows.sessions.model import Running
from flows.web.my_sessions.api import MOST_BYTES
from flows.web.my_sessions.callers import FRESH_SECONDS
from flows.web.my_sessions.login import TOKEN
from flows.web.people.scopes import Scope
from tests.support.hub import Hub, Person
from tests.support.my_sessions import BASE, Api, api, submit
from tests.support.waiting import PATIENTLY, wait_until


def test_nobody_gets_anything_without_a_token_that_holds(hub: Hub, ada: Person) -> None:
    good = api(ada).token
    assert Api(hub, "")("GET", "/sessions").json()["code"] == "not-logged-in"
    for token in ("x", good[:-1], good + "0", "0" * 64, "ä", good.upper(), "a" * 5000):
        answer = Api(hub, "")("GET", "/sessions", headers={"Authorization": f"Bearer {token}".encode()})
        assert (answer.status_code, answer.json()["code"]) == (401, "not-logged-in"), token
        assert answer.headers["content-type"] == "application/problem+json"
    # A cookie opens pages alone, and a service is no person.
    cookie = {"Cookie": f"{TOKEN}={good}"}
    assert Api(hub, "")("GET", "/sessions", headers=cookie).status_code == 401
    service = (hub.settings.home / "services" / "my-sessions" / "token").read_text()
    assert Api(hub, service)("GET", "/sessions").status_code == 401


def test_a_token_that_expired_or_was_revoked_ends_within_seconds(hub: Hub, ada: Person) -> None:
    tokens: list[Api] = []

    def lets_in() -> bool:
        tokens.append(api(ada, expires_in=2))
        return tokens[-1]("GET", "/sessions").status_code == 200

    wait_until(lets_in)  # a machine that gets nothing done for a while may ask too late
    wait_until(lambda: tokens[-1]("GET", "/sessions").status_code == 401)
    made = ada.api("POST", "/users/ada/tokens", scopes=[Scope.read]).json()
    revoked = Api(hub, made["token"])
    assert revoked("GET", "/sessions").status_code == 200
    assert ada.api("DELETE", f"/users/ada/tokens/{made['id']}").is_success
    time.sleep(FRESH_SECONDS)
    assert revoked("GET", "/sessions").status_code == 401


def test_scopes_limit_what_a_token_does(ada: Person) -> None:
    reads = api(ada, [Scope.read])
    assert reads("GET", "/sessions/ada").status_code == 200
    for path, needed in (("stop", Scope.sessions), ("snooze", Scope.updates), ("mode", Scope.updates)):
        refused = reads("POST", f"/sessions/ada/{path}", json={})
        assert (refused.status_code, refused.json()["code"]) == (403, "scope-missing")
        assert needed in refused.json()["detail"]
    assert api(ada, [Scope.updates])("GET", "/sessions").status_code == 403


def test_another_persons_session_looks_like_one_that_is_not_there(hub: Hub, ada: Person, eve: Person) -> None:
    hers = api(eve)
    listed = hers("GET", "/sessions").json()
    assert "eve" in {one["name"] for one in listed} and {one["owner"] for one in listed} == {"eve"}
    there, nowhere = hers("GET", "/sessions/ada"), hers("GET", "/sessions/nobody")
    assert there.status_code == nowhere.status_code == 404
    assert there.text.replace("ada", "nobody") == nowhere.text
    for path in ("start", "stop", "move", "snooze", "mode", "profile"):
        given = {"mode": "ask"} if path == "mode" else {"profile": "x", "release": "y"} if path == "profile" else {}
        assert hers("POST", f"/sessions/ada/{path}", json=given).status_code == 404, path
    assert hers("GET", "/sessions/ada/logs").status_code == hers("GET", "/sessions/ada/history").status_code == 404
    assert hub.sessions.show("ada").running is Running.running
    assert eve.client.get(f"{BASE}/sessions/ada").status_code == 404
    assert submit(eve, eve.client.get(f"{BASE}/"), "stop", "ada").status_code == 404


def test_what_is_sent_is_bounded_and_understood_or_refused(ada: Person) -> None:
    mine = api(ada)
    for content, code in ((b"{", "invalid"), (b"[" * 10_000, "invalid"), (b" " * (MOST_BYTES + 1), "too-large")):
        assert mine("POST", "/sessions/ada/snooze", content=content).json()["code"] == code
    durations: list[object] = [{"duration": "never"}, {"duration": "1000d"}, {"duration": "1h", "more": 1}]
    for given in (*durations, {"duration": 5}, [], "x"):
        answer = mine("POST", "/sessions/ada/snooze", json=given)
        assert answer.status_code in (409, 422), (given, answer.text)
    for mode, day in (("pin", None), ("ask", "2026-12-31"), ("pin", "2999-01-01"), ("x", None), ("pin", "tomorrow")):
        assert mine("POST", "/sessions/ada/mode", json={"mode": mode, "day": day}).status_code == 422
    assert mine("GET", "/sessions/ada/logs?lines=100000").status_code == 422
    assert mine("GET", "/sessions/ada%2F..%2Feve").status_code == 404
    assert mine("GET", "/nothing").json()["code"] == "unknown"
    assert mine("DELETE", "/sessions/ada").status_code in (404, 405)


def test_no_answer_is_lost_on_the_way(ada: Person) -> None:
    # The service may have answered before the gateway has noticed that it has sent everything.
    mine = api(ada)
    answers = {mine("POST", "/sessions/ada/snooze", content=b"{").status_code for _ in range(200)}
    assert answers == {422}


def test_a_form_counts_from_a_page_of_this_login_alone(hub: Hub, ada: Person, eve: Person) -> None:
    page = ada.client.get(f"{BASE}/")
    for key in ("", "x", "0" * 64):
        refused = ada.client.post(f"{BASE}/do/stop", data={"form": key, "session": "ada"})
        assert refused.status_code == 422
    # A form of another login, and one that another place has sent.
    hers = submit(ada, eve.client.get(f"{BASE}/"), "stop", "ada")
    assert hers.status_code == 422
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Mode": "cors"}, {"Sec-Fetch-Dest": "iframe"}):
        sent = ada.client.post(f"{BASE}/do/stop", data={"form": "x"}, headers=headers, follow_redirects=False)
        assert sent.status_code == 401, headers
        if "Sec-Fetch-Site" not in headers:  # a script of an IDE reads no page, though it has the same origin
            read = ada.client.get(f"{BASE}/", headers=headers, follow_redirects=False)
            assert read.status_code == 401 and 'name="form"' not in read.text
    assert hub.sessions.show("ada").running is Running.running and page.status_code == 200


def test_a_login_comes_from_this_browser_and_leads_back_here_alone(hub: Hub, ada: Person) -> None:
    for query in ("", "?code=x", "?code=x&state=y", "?code=x&state=y.z"):
        assert ada.client.get(f"{BASE}/oauth_callback{query}").status_code == 422
    fresh = httpx.Client(base_url=hub.settings.gateway_url, **PATIENTLY)
    sent = fresh.get(f"{BASE}/sessions/ada?x=1")
    assert sent.status_code == 302 and sent.headers["location"].startswith("/hub/api/oauth2/authorize?")
    cookie = sent.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and f"path={BASE}/oauth_callback" in cookie


def test_to_log_out_of_the_hub_ends_the_login_here(hub: Hub) -> None:
    bob = hub.person("bob")
    assert bob.client.get(f"{BASE}/").status_code == 200
    bob.client.get("/hub/logout")
    time.sleep(FRESH_SECONDS)
    assert "/hub/login" in str(bob.client.get(f"{BASE}/").url)


@pytest.mark.parametrize("path", ["/..%2f..%2fhub", "/%00", "//evil.example/"])
def test_odd_addresses_are_answered_with_a_page(ada: Person, path: str) -> None:
    assert ada.client.get(f"{BASE}{path}", follow_redirects=False).status_code in (302, 308, 400, 404)


def test_a_way_upwards_ends_inside_of_the_page(ada: Person) -> None:
    assert ada.sees(f"{BASE}/sessions/%2e%2e") == ada.sees(f"{BASE}/")
