"""Cookies, tokens and redirects of logins, for real: forged, expired, of somebody else, of somebody who is gone."""

from __future__ import annotations

import base64
import re
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest

from flows.web.authorizer import passes
from tests.support.hub import Hub, Person
from tests.support.people import People, assert_out, come_in, cookies, opened, says, status
from tests.support.waiting import PATIENTLY, running_seconds, wait_until

PAGE = {"Accept": "text/html"}


def key(hub: Hub) -> str:
    return (hub.settings.home / "services/authorizer/key").read_text()


def sealed(hub: Hub, purpose: str = passes.PASS, seconds: float = 60, **told: str) -> dict[str, str]:
    return {"Cookie": f"{passes.PASS}={passes.seal(key(hub), purpose, seconds, **told)}"}


def test_only_a_pass_that_was_given_and_holds_lets_somebody_in(hub: Hub, lin: Person, ben: Person) -> None:
    come_in(lin, "papers")
    own = cookies(lin)["Cookie"].partition("=")[2].strip('"')
    told = passes.opened(key(hub), passes.PASS, own)
    assert told and told["person"] == "lin"
    login = str(told["login"])
    assert status(hub, "papers", sealed(hub, person="lin", login=login)) == 200
    content, _, signature = own.partition(".")
    other = base64.urlsafe_b64encode(base64.urlsafe_b64decode(content).replace(b'"lin"', b'"ben"')).decode()
    refused = {
        "forged": {"Cookie": f"{passes.PASS}={quote(f'{other}.{signature}')}"},
        "cut": {"Cookie": f"{passes.PASS}={content}"},
        "expired": sealed(hub, seconds=-1, person="lin", login=login),
        "for something else": sealed(hub, passes.GUEST, person="lin", login=login),
        "of no login": sealed(hub, person="lin", login="a999999"),
        "from before logins had numbers": sealed(hub, person="lin"),
        "of another person's login": sealed(hub, person="ben", login=login),
        "of nobody": sealed(hub, person="ghost", login=login),
        "of the other browser": {"Cookie": f"{passes.STATE}={own}"},
    }
    assert {why: status(hub, "papers", cookie) for why, cookie in refused.items()} == dict.fromkeys(refused, 403)
    come_in_elsewhere = ben.client.get("/session/papers/api")
    assert come_in_elsewhere.status_code == 403 and cookies(ben)
    assert status(hub, "papers", cookies(ben)) == 403


def test_a_pass_is_sent_to_sessions_alone_and_no_script_reads_it(hub: Hub, lin: Person) -> None:
    for proto, name, path in (("http", "refit-pass", "/session/"), ("https", "__Host-refit-pass", "/")):
        browser = Person(hub, "lin")
        browser.client.headers["X-Forwarded-Proto"] = proto
        browser.log_in()
        begun = browser.client.get("/session/papers/api", follow_redirects=False)
        [state] = begun.headers.get_list("set-cookie")
        assert {"HttpOnly", "SameSite=lax", "Path=/authorizer/callback"} <= set(state.split("; "))
        asked = browser.client.get(begun.headers["location"], follow_redirects=False)
        # Over TLS the client of the test keeps no cookie that is marked so: it speaks none.
        nonce = re.findall(rf"{passes.STATE}=([^;]+)", state)[0]
        back = browser.client.get(
            asked.headers["location"], headers={"Cookie": f"{passes.STATE}={nonce}"}, follow_redirects=False
        )
        [given] = [one for one in back.headers.get_list("set-cookie") if "refit-pass" in one]
        flags = set(given.split("; "))
        assert given.startswith(f"{name}=") and {"HttpOnly", "SameSite=lax", f"Path={path}"} <= flags
        assert ("Secure" in flags) == (proto == "https") and not [one for one in flags if one.startswith("Domain")]
        assert status(hub, "papers", {"Cookie": given.partition(";")[0]}) == 200


def test_no_redirect_leads_elsewhere_and_no_login_is_pushed_on_anybody(hub: Hub, lin: Person, ben: Person) -> None:
    base = hub.settings.gateway_url
    for path in (
        "//evil.example/session/papers",
        "/session/papers//evil.example",
        "/session/papers?next=//evil.example",
    ):
        asked = httpx.get(f"{base}{path}", headers=PAGE, **PATIENTLY)
        state = parse_qs(urlsplit(asked.headers.get("location", "")).query).get("state", [""])[0]
        told = passes.opened(key(hub), passes.STATE, state)
        assert told is None or told["to"].startswith(("/session/papers", "/hub/home")), told
    for to in ("https://evil.example", "//evil.example", "/\\evil.example"):
        answer = ben.client.get(f"/hub/login?next={quote(to)}", follow_redirects=True)
        assert answer.url.host == urlsplit(base).hostname
        assert ben.client.get(f"/authorizer/guest?to={quote(to)}").status_code == 400
    # Somebody makes another's browser end a login that began in their own.
    begun = lin.client.get("/session/papers/api", headers={"Cookie": ""}, follow_redirects=False)
    asked = Person(hub, "lin")
    asked.log_in()
    begun = asked.client.get("/session/papers/api", follow_redirects=False)
    led = asked.client.get(begun.headers["location"], follow_redirects=False).headers["location"]
    assert ben.client.get(led, follow_redirects=False).status_code == 400
    # A page of a session writes to the Hub with its visitor's cookies: the Hub wants what that page can't read.
    assert ben.client.post("/hub/api/users/ben/tokens", json={}).status_code == 403
    assert ben.client.post("/hub/accept-share", data={"code": "x"}).status_code == 403


def test_of_two_browsers_the_one_that_logs_out_is_out(hub: Hub, people: People) -> None:
    ivy = hub.person("ivy")
    people.session("ivy", "ivy")
    other = Person(hub, "ivy")
    other.log_in()
    come_in(ivy, "ivy")
    come_in(other, "ivy")
    with opened(hub, "ivy", cookies(ivy)) as first, opened(hub, "ivy", cookies(other)) as second:
        assert says(first) and says(second)
        ivy.client.get("/hub/logout")
        assert_out(hub, "ivy", first, cookies(ivy), running_seconds())
        assert says(second)
    assert "/hub/login" in str(ivy.client.get("/session/ivy/api").url)


def test_a_program_comes_with_a_token_of_the_hub_until_that_is_revoked(hub: Hub, people: People) -> None:
    joe, eve = hub.person("joe"), hub.person("eva")
    ide = people.session("joe", "joe")
    token = joe.token(note="a program")
    assert status(hub, "joe", token) == 200
    assert ide.asked[-1].headers.get("Authorization") is None  # it isn't for the IDE
    bearer = {"Authorization": token["Authorization"].replace("token ", "Bearer ")}
    assert status(hub, "joe", bearer) == 200
    assert status(hub, "joe", eve.token()) == 403
    assert status(hub, "joe", joe.token(scopes=["read:users!user=joe"])) == 403
    for wrong in ("token x", "token", "Bearer x y", "token " + 400 * "x", "Basic am9lOmpvZQ=="):
        assert status(hub, "joe", {"Authorization": wrong}) == 403
    [made] = [one for one in joe.api("GET", "/users/joe/tokens").json()["api_tokens"] if one["note"] == "a program"]
    with opened(hub, "joe", token) as channel:
        assert says(channel)
        assert joe.api("DELETE", f"/users/joe/tokens/{made['id']}").status_code == 204
        assert_out(hub, "joe", channel, token, running_seconds())


@pytest.mark.parametrize("name", ["zoé.o'neil@example.org", "安", f"{'long' * 50}", "a--b", "-", "1", "ivy-", "ivy.x"])
def test_a_person_of_any_name_has_sessions_of_their_own(hub: Hub, people: People, lin: Person, name: str) -> None:
    person = hub.person(name)
    session = f"s{abs(hash(name)) % 10**9}"
    people.session(session, name)
    come_in(person, session)
    wait_until(lambda: f"/user/{quote(name)}" in person.sees("/hub/home") or person.sees("/hub/home"))
    assert person.client.get("/session/papers/api").status_code == 403
    hub.refit("session", "share", "papers", "--with", name)
    come_in(person, "papers")
    with opened(hub, "papers", cookies(person)) as channel:
        assert says(channel)
        hub.refit("session", "unshare", "papers", "--with", name)
        assert_out(hub, "papers", channel, cookies(person), running_seconds())
    assert person.client.get(f"/session/{session}/api").status_code == 200


@pytest.mark.parametrize("name", ["Ada", "a b", "a/b", 201 * "a", "a\x1b[31m"])
def test_a_name_that_the_hub_would_change_is_refused_with_a_reason(hub: Hub, name: str) -> None:
    assert "can't be the name of a person" in hub.fails("user", "invite", name)
