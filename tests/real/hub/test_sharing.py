"""Guests in sessions, for real: let in by shares, told whose session it is, and out as soon as a right ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection, serve

from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.web.hub import passes
from tests.support.hub import Hub, Person
from tests.support.machine import FIRST
from tests.support.variants import LIGHT
from tests.support.waiting import PATIENCE, PATIENTLY, serving, wait_until

# Seconds within which somebody is out who may not use a session any more.
OUT_SECONDS = 2.0
SHARES = "/shares/lin/papers"


@pytest.fixture(scope="module")
def lin(hub: Hub) -> Person:
    """Somebody with a session that the Hub knows."""
    lin = hub.person("lin")
    hub.sessions.create("papers", FIRST, "2026a", hub.image, LIGHT, owner="lin")
    wait_until(lambda: hub.server("lin", "papers"))
    assert lin.reaches("/session/papers/api") == "papers"
    return lin


@pytest.fixture(scope="module")
def ben(hub: Hub) -> Person:
    return hub.person("ben")


def share(lin: Person, **whom: str) -> None:
    assert lin.api("POST", SHARES, **whom).status_code == 200


def unshare(lin: Person, **whom: str) -> None:
    assert lin.api("PATCH", SHARES, **whom).status_code == 200


def come_in(person: Person, path: str = "/session/papers/api") -> None:
    """Open a session as soon as that may be, and go on where the guest is told whose it is."""
    wait_until(lambda: person.client.get(path).status_code == 200)
    told = person.client.get(path)
    if told.url.path == "/authorizer/guest":
        told = person.client.post(str(told.url))
    assert told.text.startswith("this is"), told.text


def test_a_share_lets_a_guest_in_who_is_told_once_and_its_end_keeps_them_out(
    hub: Hub, lin: Person, ben: Person
) -> None:
    refused = ben.client.get("/session/papers/api")
    assert refused.status_code == 403 and "is not yours" in refused.text
    share(lin, user="ben")
    wait_until(lambda: ben.client.get("/session/papers/api").status_code == 200)
    told = ben.client.get("/session/papers/api?x=1")
    assert told.url.path == "/authorizer/guest" and "you act as the session" in told.text and "lin" in told.text
    opened = ben.client.post(str(told.url))
    assert str(opened.url).endswith("/session/papers/api?x=1") and opened.text.startswith("this is /session/papers")
    assert ben.sees("/session/papers/api").startswith("this is")
    visits = [event for event in History(hub.sessions.store.database).events("papers") if event.kind is Kind.visited]
    assert [(event.by, event.data["role"]) for event in visits] == [("ben", "shared")]
    unshare(lin, user="ben")
    wait_until(lambda: ben.client.get("/session/papers/api").status_code == 403, OUT_SECONDS)
    assert lin.sees("/session/papers/api").startswith("this is")


def echo(channel: ServerConnection) -> None:
    for said in channel:
        channel.send(said)


class Stream(BaseHTTPRequestHandler):
    """Answers without an end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while not self.wfile.closed:
                self.wfile.write(b"more\n")
                sleep(0.05)


@contextmanager
def terminal(hub: Hub) -> Iterator[None]:
    """A session that echoes what comes by websockets."""
    with serve(echo, "127.0.0.1", 0) as ide:
        threading.Thread(target=ide.serve_forever, daemon=True).start()
        hub.sessions.gateway.lead("papers", f"http://127.0.0.1:{ide.socket.getsockname()[1]}")
        yield
    hub.sessions.tell_gateway_of("papers")


def cookies(person: Person) -> dict[str, str]:
    return {"Cookie": f"{passes.PASS}={person.client.cookies.get(passes.PASS)}"}


def opened(hub: Hub, headers: dict[str, str], session: str = "papers") -> ClientConnection:
    url = f"ws{hub.settings.gateway_url.removeprefix('http')}/session/{session}/terminal"
    return connect(url, additional_headers=headers, proxy=None, open_timeout=PATIENCE)


def assert_out(hub: Hub, channel: ClientConnection, headers: dict[str, str], since: float) -> None:
    """A terminal has ended in time, with a reason, and doesn't open again."""
    with pytest.raises(ConnectionClosed) as closed:
        channel.recv(timeout=PATIENCE)
    assert monotonic() - since < OUT_SECONDS
    assert closed.value.rcvd is not None and closed.value.rcvd.code == CloseCode.POLICY_VIOLATION
    with pytest.raises(InvalidStatus) as refused:
        opened(hub, headers)
    assert refused.value.response.status_code == 403


def says(channel: ClientConnection) -> bool:
    channel.send("x")
    return channel.recv(timeout=PATIENCE) == "x"


Ends = Callable[[Hub, Person, Person], Any]


def _log_out(hub: Hub, lin: Person, ben: Person) -> None:
    ben.client.get("/hub/logout")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda hub, lin, ben: unshare(lin, user="ben"), id="revoked"),
        pytest.param(_log_out, id="logged out"),
        pytest.param(lambda hub, lin, ben: ben.api("DELETE", "/users/ben/shared/lin/papers"), id="given back"),
    ],
)
def test_an_open_terminal_of_a_guest_ends_with_the_right_and_nobody_elses_does(
    hub: Hub, lin: Person, ben: Person, end: Ends
) -> None:
    share(lin, user="ben")
    ben.log_in()
    come_in(ben)
    with terminal(hub), opened(hub, cookies(ben)) as guests, opened(hub, cookies(lin)) as own:
        assert says(guests) and says(own)
        since = monotonic()
        end(hub, lin, ben)
        assert_out(hub, guests, cookies(ben), since)
        assert says(own)


def test_a_group_shares_and_who_leaves_it_is_out(hub: Hub, lin: Person) -> None:
    admin = hub.person("root", "--admin")
    dan = hub.person("dan")
    assert admin.api("POST", "/groups/class").status_code == 201
    assert admin.api("POST", "/groups/class/users", users=["dan"]).status_code == 200
    share_token = admin.api("POST", SHARES, group="class")
    assert share_token.status_code == 200
    come_in(dan)
    with terminal(hub), opened(hub, cookies(dan)) as guests:
        assert says(guests)
        since = monotonic()
        assert admin.api("DELETE", "/groups/class/users", users=["dan"]).status_code == 200
        assert_out(hub, guests, cookies(dan), since)
    come_in(admin)  # whom the Hub's role lets reach all servers


def test_a_stream_ends_with_the_right_and_with_the_owners_account(hub: Hub) -> None:
    eve, mia = hub.person("eve"), hub.person("mia")
    hub.sessions.create("data", FIRST, "2026a", hub.image, LIGHT, owner="mia")
    hub.refit("session", "owner", "data", "eve")
    wait_until(lambda: eve.client.get("/session/data/api").status_code == 200)
    with serving(Stream) as port, streaming(hub, eve, port) as (lines, since):
        since.append(monotonic())
        hub.refit("session", "owner", "data", "mia")
        assert_stream_ends(lines, since)
    wait_until(lambda: mia.client.get("/session/data/api").status_code == 200)
    with serving(Stream) as port, streaming(hub, mia, port) as (lines, since):
        since.append(monotonic())
        hub.refit("user", "remove", "mia", "--yes")
        assert_stream_ends(lines, since)
    assert (
        httpx.get(f"{hub.settings.gateway_url}/session/data/api", headers=cookies(mia), **PATIENTLY).status_code == 403
    )


@contextmanager
def streaming(hub: Hub, person: Person, port: int) -> Iterator[tuple[Iterator[bytes], list[float]]]:
    hub.sessions.gateway.lead("data", f"http://127.0.0.1:{port}")
    url = f"{hub.settings.gateway_url}/session/data/stream"
    with httpx.stream("GET", url, headers=cookies(person), **PATIENTLY) as answer:
        lines = answer.iter_raw()
        assert next(lines)
        yield lines, []


def assert_stream_ends(lines: Iterator[bytes], since: list[float]) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        for _ in lines:
            assert monotonic() - since[0] < PATIENCE
