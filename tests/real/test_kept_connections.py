"""Connections that the gateway keeps to an IDE, and that this closes in the moment in which one is used again."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import httpx
import pytest

from flows import services
from flows.core.settings import Settings
from flows.gateway.proxy import Gateway
from tests.support.machine import RegistryServer, home_with_gateway
from tests.support.waiting import PATIENTLY, serving, wait_until


class Ide(BaseHTTPRequestHandler):
    """An IDE that answers once on each connection, and closes it without a word when it is asked again."""

    protocol_version = "HTTP/1.1"
    closed = 0
    asked: ClassVar[list[str]] = []

    def handle_one_request(self) -> None:
        if getattr(self, "answered", False):
            self.rfile.read(1)
            Ide.closed += 1
            self.close_connection = True
            return
        super().handle_one_request()
        self.answered = True

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.headers['X-Forwarded-For']} {self.headers['X-Forwarded-Proto']}")
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def session(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a session whose IDE closes connections."""
    with home_with_gateway(tmp_path_factory.mktemp("kept") / "home", registry_server.port) as settings:
        services.up(settings, only=("gateway",))
        with serving(Ide) as port:
            yield routed(settings, port)


def routed(settings: Settings, port: int) -> str:
    Gateway(settings).route("ada", f"http://127.0.0.1:{port}")
    url = f"{settings.gateway_url}/session/ada/api"
    wait_until(lambda: httpx.get(url, **PATIENTLY).text == "ok")
    return url


def test_a_question_is_asked_once_more_and_what_changes_something_is_not(session: str) -> None:
    with httpx.Client(**PATIENTLY) as client:
        closed = Ide.closed
        assert {client.get(session).text for _ in range(6)} == {"ok"}
        assert Ide.closed > closed, "no kept connection was used again"
        assert set(Ide.asked) == {"GET 127.0.0.1 http"}, "the IDE was told more than once who asks"

        def is_given_up() -> bool:
            """Whether what changes something met a closed connection, and was not sent on another one."""
            closed = Ide.closed
            answer = client.post(session, content=b"x")
            return Ide.closed > closed and not answer.is_success

        wait_until(is_given_up)
