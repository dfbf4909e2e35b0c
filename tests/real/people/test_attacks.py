"""Neighbours who mean harm: connections that never end, bodies that never end, and one code that many send at once."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from flows import services
from flows.sessions.people.share_records import Grants
from tests.support.hub import Hub, Person
from tests.support.people import People, come_in, cookies, status
from tests.support.waiting import PATIENCE, PATIENTLY, serving, wait_until

CONNECTIONS = 150
# Bytes: of a body, and by which services may grow meanwhile; Node frees what it has passed on when it gets round to it.
PIECE, SENT, MOST = b"x" * (1 << 16), 1 << 28, 1 << 27
# Each begins a request, and never ends it.
SLOW = (
    b"GET /session/papers/api HTTP/1.1\r\nHost: here\r\nX-Slow: ",
    b"POST /services/sessions/api/sessions HTTP/1.1\r\nHost: here\r\nContent-Length: 9999\r\n\r\n{",
    b"POST /hub/accept-share HTTP/1.1\r\nHost: here\r\nContent-Length: 9999\r\n\r\ncode=",
    b"POST /authorizer/guest?to=x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n",
)
ENDLESS = (
    "/services/sessions/api/sessions",
    "/services/sessions/do/stop",
    "/authorizer/guest?to=x",
    "/session/papers/api",
)


COOKIES = {
    "refit-pass=of-an-attacker; Path=/": "",
    " refit-pass=of-an-attacker; Path=/session/": "",
    "__Host-refit-pass=x; Secure; Path=/": "",
    "jupyterhub-session-id=fixed; Path=/; HttpOnly": "",
    "_xsrf=fixed; path=/hub/": "_xsrf=fixed; Path=/session/harmful/",
    "a=1": "a=1; Path=/session/harmful/",
    "b=1; Path=/session/harmful2": "b=1; Path=/session/harmful/",
    "c=1; Path=/session/harmful/; PATH=/": "c=1; Path=/session/harmful/",
    "d=1; Domain=localhost; Max-Age=9": "d=1; Max-Age=9; Path=/session/harmful/",
    "e=1; Path=/session/harmful/lab; SameSite=Lax": "e=1; SameSite=Lax; Path=/session/harmful/lab",
    "f=1;Path=/session/harmful/../papers": "f=1; Path=/session/harmful/",
}


class Harmful(BaseHTTPRequestHandler):
    """An IDE that sets cookies for everybody else's paths."""

    def do_GET(self) -> None:
        self.send_response(200)
        for cookie in COOKIES:
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def connected(hub: Hub) -> socket.socket:
    """A connection to the gateway."""
    place = urlsplit(hub.settings.gateway_url)
    return socket.create_connection((place.hostname, place.port), timeout=PATIENCE)


def memory(hub: Hub) -> int:
    """Bytes that the services in front of sessions have in memory."""
    names = ("gateway", "authorizer", "my-sessions")
    pids = [one.pid for one in services.status(hub.settings) if one.name in names and one.pid]
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


def test_connections_that_never_end_keep_nobody_out(hub: Hub, lin: Person) -> None:
    come_in(lin, "papers")
    with ExitStack() as stack:
        for begun in SLOW:
            for _ in range(CONNECTIONS):
                stack.enter_context(slow := connected(hub))
                slow.sendall(begun)
        asked = time.monotonic()
        assert status(hub, "papers", cookies(lin)) == HTTPStatus.OK
        assert lin.client.get("/services/sessions/").status_code == HTTPStatus.OK
        assert lin.client.get("/hub/home").status_code == HTTPStatus.OK
        assert time.monotonic() - asked < PATIENCE


@pytest.mark.parametrize("path", ENDLESS)
def test_a_body_that_never_ends_fills_no_memory(hub: Hub, people: People, lin: Person, path: str) -> None:
    come_in(lin, "papers")
    sent = [0]

    def pieces() -> Iterator[bytes]:
        while sent[0] < SENT:
            sent[0] += len(PIECE)
            yield PIECE

    before = memory(hub)
    try:
        answer = httpx.post(f"{hub.settings.gateway_url}{path}", content=pieces(), **PATIENTLY)
        assert answer.is_client_error, answer.status_code
    except httpx.TransportError:
        assert sent[0] < SENT  # it was cut
    assert memory(hub) - before < MOST
    assert status(hub, "papers", cookies(lin)) == HTTPStatus.OK


def test_a_code_that_many_send_at_once_makes_one_guest(hub: Hub, lin: Person) -> None:
    guests = [hub.person(f"guest-{number}") for number in range(3)]
    [link] = re.findall(r"http\S+", hub.refit("session", "share", "papers", "--code", "--until", "1h"))
    code = link.partition("code=")[2]

    def send(person: Person) -> int:
        # Cookies are of this browser, and the token is of its page: this is no forgery, only haste.
        headers = {"X-XSRFToken": person.client.cookies.get("_xsrf", path="/hub/") or ""}
        with httpx.Client(base_url=hub.settings.gateway_url, cookies=person.client.cookies, **PATIENTLY) as browser:
            return browser.post("/hub/accept-share", data={"code": code}, headers=headers).status_code

    for guest in guests:
        guest.client.get(link)
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(send, guests * 4))
    # To the session that is theirs now; all others are told that it was used.
    assert sorted(statuses) == [HTTPStatus.FOUND] + 11 * [HTTPStatus.GONE]
    shared = {one.subject for one in Grants(hub.sessions.store.database).open() if one.subject.startswith("guest-")}
    assert len(shared) == 1

    def inside() -> set[str]:
        return {one.name for one in guests if status(hub, "papers", one.token()) == HTTPStatus.OK}

    wait_until(lambda: inside() == shared)
    hub.refit("session", "unshare", "papers", "--with", shared.pop())
    wait_until(lambda: not inside())


def test_an_ide_sets_cookies_for_its_own_session_alone(hub: Hub, people: People, lin: Person) -> None:
    come_in(lin, "papers")
    with serving(Harmful) as port:
        people.session("harmful", "lin", url=f"http://127.0.0.1:{port}")
        answer = httpx.get(f"{hub.settings.gateway_url}/session/harmful/api", headers=cookies(lin), **PATIENTLY)
    assert answer.status_code == HTTPStatus.OK
    assert answer.headers.get_list("set-cookie") == [cookie for cookie in COOKIES.values() if cookie]


def test_a_page_elsewhere_accepts_no_share_in_a_visitors_name(hub: Hub, lin: Person) -> None:
    victim = hub.person("victim")
    [link] = re.findall(r"http\S+", hub.refit("session", "share", "papers", "--code"))
    victim.client.get(link)
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}):
        form = {"code": link.partition("code=")[2]}
        sent = victim.client.post("/hub/accept-share", data=form, headers=headers, follow_redirects=False)
        assert sent.status_code == HTTPStatus.FORBIDDEN, headers
    assert status(hub, "papers", victim.token()) == HTTPStatus.FORBIDDEN
    [code] = json.loads(hub.refit("session", "shares", "papers", "--json"))
    hub.refit("session", "unshare", "papers", "--code", code["subject"])
    wait_until(lambda: not Grants(hub.sessions.store.database).open())
