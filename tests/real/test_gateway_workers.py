"""Service workers of an IDE, which may not answer for pages beside their own session."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import httpx
import pytest

from flows import services
from flows.core.settings import Settings
from flows.gateway.proxy import Gateway
from tests.support.machine import RegistryServer, home_with_gateway
from tests.support.waiting import PATIENTLY, serving, wait_until

_ALLOWED = "service-worker-allowed"


class Ide(BaseHTTPRequestHandler):
    """An IDE that says what its workers may do as it is asked to."""

    def do_GET(self) -> None:
        self.send_response(200)
        if allows := self.headers.get("X-Allows"):
            self.send_header("Service-Worker-Allowed", allows)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with home_with_gateway(tmp_path_factory.mktemp("workers") / "home", registry_server.port) as settings:
        services.up(settings, only=("gateway",))
        yield settings


def test_a_worker_has_no_scope_outside_of_its_session(settings: Settings) -> None:
    gateway = Gateway(settings)
    with serving(Ide) as port:

        def answer(allows: str, path: str = "/session/ada/worker.js") -> httpx.Response:
            gateway.route("ada", f"http://127.0.0.1:{port}")
            return httpx.get(f"{settings.gateway_url}{path}", headers={"X-Allows": allows}, **PATIENTLY)

        wait_until(lambda: answer("").status_code == 200)
        for kept in ("/session/ada/", "/session/ada/lab/", "/session/ada/./lab"):
            assert answer(kept).headers.get(_ALLOWED) == kept
        for gone in (
            "/",
            "/session/",
            "/session/ada",
            "/session/adam/",
            "/session/eve/",
            "/hub/",
            "..",
            "./",
            "../../",
        ):
            assert _ALLOWED not in answer(gone).headers, gone
        for tricky in (
            "/session/ada/../eve/",
            "/session/ada/%2e%2e/eve/",
            "/session/ada\\..\\eve/",
            "//evil.example/session/ada/",
            "http://evil.example/session/ada/",
            "/session/ada/\t../",
        ):
            assert _ALLOWED not in answer(tricky).headers, tricky
        assert _ALLOWED not in answer("/session/ada/lab/", "/session/eve/x").headers
