from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from flows.orchestration.server import LogsIn, hosts
from flows.services import tickets

NAMES = hosts("127.0.0.1", ["machine", "machine.example"])


async def greet(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    routes = [Route("/api/health", lambda _: PlainTextResponse("true")), WebSocketRoute("/api/events/in", greet)]
    app = TrustedHostMiddleware(LogsIn(Starlette(routes=routes), tmp_path, "refit:pässword"), NAMES, www_redirect=False)
    with TestClient(app, base_url="http://127.0.0.1:4200") as client:
        yield client


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4200", "localhost", "LOCALHOST:4200", "[::1]:4200", "machine", "machine.example:80"]
)
def test_hosts_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/health", headers={"Host": host}).text == "true"
    with client.websocket_connect("/api/events/in", headers={"Host": host}) as socket:
        assert socket.receive_text() == "hello"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4200", "127.0.0.1.evil.example", "x@127.0.0.1", "machine.example.", "", "*"]
)
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    for path in ("/api/health", tickets.PAGE, "/"):
        assert client.get(path, headers={"Host": host}).status_code == 400
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/api/events/in", headers={"Host": host}) as socket,
    ):
        socket.receive_text()


def test_where_it_listens_everywhere_all_addresses_of_the_machine_are_its_own() -> None:
    assert {"127.0.0.1", "localhost", "[::1]", "machine"} <= set(hosts("0.0.0.0", ["machine"]))
    assert "0.0.0.0" not in hosts("0.0.0.0", [])
    assert "10.1.2.3" in hosts("10.1.2.3", [])


def test_a_ticket_gives_the_login_once(client: TestClient, tmp_path: Path) -> None:
    ticket = tickets.make(tmp_path)
    page = client.get(tickets.PAGE)
    assert page.status_code == 200 and "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    assert page.headers["Referrer-Policy"] == "no-referrer" and page.headers["Cache-Control"] == "no-store"
    answer = client.post(tickets.PAGE, content=ticket)
    assert base64.b64decode(answer.text).decode() == "refit:pässword"
    assert answer.headers["Cache-Control"] == "no-store"
    assert client.post(tickets.PAGE, content=ticket).status_code == 403


@pytest.mark.parametrize("wrong", [b"", b"x" * 43, b"x" * 1_000_000, b"\xff\xfe", b"../../password"])
def test_without_a_ticket_there_is_no_login(client: TestClient, tmp_path: Path, wrong: bytes) -> None:
    tickets.make(tmp_path)
    assert client.post(tickets.PAGE, content=wrong).status_code == 403
    assert client.put(tickets.PAGE, content=wrong).status_code == 405
