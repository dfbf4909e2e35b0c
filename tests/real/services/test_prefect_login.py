"""Prefect answers whoever is logged in, at this machine's own names, and nobody else: with the real server and UI."""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import Page, Request, Response, expect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from flows import services
from flows.core.settings import Settings
from flows.services import csrf, tickets
from tests.support.browser import open_page, wait_for_dashboard, wait_for_login
from tests.support.prefect_api import prefect_client, websocket_paths
from tests.support.services import pid_of
from tests.support.waiting import PATIENCE, PATIENTLY

OPEN = {"/api/health", "/api/ready"}  # whether it is there
PREFECT = Subprotocol("prefect")


@pytest.fixture
def page() -> Iterator[Page]:
    with open_page() as opened:
        yield opened


def password(settings: Settings) -> str:
    return (settings.home / "services/prefect/password").read_text()


def routes(settings: Settings) -> list[tuple[str, str]]:
    """Method and path of each request that the API knows."""
    paths = httpx.get(f"{settings.prefect_url}/openapi.json", **PATIENTLY).json()["paths"]
    some = str(os.getpid())
    return [
        (method.upper(), "/api" + re.sub(r"{[^}]*}", some, path).removeprefix("/api"))
        for path, methods in paths.items()
        for method in methods
    ]


def test_without_the_login_nothing_is_answered(settings: Settings) -> None:
    asked = routes(settings)
    assert len(asked) > 150 and ("POST", "/api/deployments/") in asked
    with httpx.Client(base_url=settings.prefect_url, **PATIENTLY) as stranger:
        for method, path in asked:
            if path not in OPEN:
                # A request that changes something is refused without a token, before the login is looked at.
                expected = {401} if method == "GET" else {401, 403}
                assert stranger.request(method, path).status_code in expected, (method, path)
        for wrong in ("refit:", f"refit:{password(settings)}x", f"root:{password(settings)}", "x"):
            word = base64.b64encode(wrong.encode()).decode()
            answer = stranger.get("/api/admin/version", headers={"Authorization": f"Basic {word}"})
            assert answer.status_code == 401


def test_a_token_against_forged_requests_is_for_those_who_are_logged_in(settings: Settings) -> None:
    with httpx.Client(base_url=settings.prefect_api, **PATIENTLY) as stranger, pytest.raises(httpx.HTTPStatusError):
        csrf.headers(stranger)
    with httpx.Client(base_url=settings.prefect_api, auth=services.prefect_login(settings), **PATIENTLY) as forged:
        assert forged.post("/flows/", json={"name": "forged"}).status_code == 403
    with prefect_client(settings) as ours:
        assert "forged" not in {flow["name"] for flow in ours.post("/flows/filter", json={}).json()}


@pytest.mark.parametrize("path", ["/api/health", "/api/ready", "/api/admin/version", "/", tickets.PAGE, "/docs"])
def test_a_page_that_comes_by_a_name_of_its_own_gets_nothing(settings: Settings, path: str) -> None:
    with httpx.Client(base_url=settings.prefect_url, auth=services.prefect_login(settings), **PATIENTLY) as client:
        for host in ("evil.example", f"evil.example:{settings.prefect_port}", "127.0.0.1.evil.example"):
            assert client.get(path, headers={"Host": host}).status_code == 400
        for host in ("localhost", f"127.0.0.1:{settings.prefect_port}", "[::1]", socket.gethostname()):
            assert client.get(path, headers={"Host": host}).status_code in (200, 307)


def test_websockets_want_the_login_and_a_host_of_this_machine(settings: Settings) -> None:
    paths = [f"/api{re.sub(r'{[^}]*}', 'refit', path)}" for path in websocket_paths()]
    assert len(paths) > 3
    for path in paths:
        check_a_socket_is_closed_to_strangers(settings, path)


def check_a_socket_is_closed_to_strangers(settings: Settings, path: str) -> None:
    here = ("127.0.0.1", settings.prefect_port)
    elsewhere = f"ws://evil.example:{settings.prefect_port}{path}"
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(elsewhere, sock=socket.create_connection(here), open_timeout=PATIENCE),
    ):
        pass
    assert refused.value.response.status_code in (400, 403)
    ours = f"ws://127.0.0.1:{settings.prefect_port}{path}"
    for token in (None, "", "refit:wrong"):
        with (
            connect(ours, subprotocols=[PREFECT], proxy=None, open_timeout=PATIENCE) as stranger,
            pytest.raises(ConnectionClosed),
        ):
            stranger.send(f'{{"type": "auth", "token": {_json(token)}}}')
            for _ in range(3):
                stranger.recv(PATIENCE)


def _json(text: str | None) -> str:
    return "null" if text is None else f'"{text}"'


def test_the_login_stands_in_no_argument_and_no_log(settings: Settings) -> None:
    server = psutil.Process(pid_of(settings, "prefect"))
    assert password(settings) not in " ".join(server.cmdline())
    assert not [log for log in (settings.home / "logs").iterdir() if password(settings) in log.read_text()]
    assert (settings.home / "services/prefect/password").stat().st_mode & 0o777 == 0o600


class Heard:
    """The requests of a page from now on: the answers of the API, and what it wants from elsewhere and gets."""

    def __init__(self, page: Page, settings: Settings) -> None:
        self.answers: list[Response] = []
        self.elsewhere: list[str] = []
        self._port = f":{settings.prefect_port}/"
        page.on("response", self._answered)
        page.on("requestfailed", self._failed)

    def _answered(self, answer: Response) -> None:
        if self._port not in answer.url:
            self.elsewhere.append(answer.url)
        elif "/api/" in answer.url:
            self.answers.append(answer)

    def _failed(self, request: Request) -> None:
        if self._port not in request.url and request.failure != "csp":
            self.elsewhere.append(f"{request.url} {request.failure}")


def test_a_link_opens_the_ui_logged_in_and_once(settings: Settings, page: Page) -> None:
    link, heard = tickets.link(settings), Heard(page, settings)
    page.goto(link)
    wait_for_dashboard(page)
    expect(page.get_by_text("Flows", exact=True).first).to_be_visible()
    page.goto(f"{settings.prefect_url}/flows")
    expect(page.get_by_text("Flows", exact=True).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert heard.answers and not [answer.url for answer in heard.answers if answer.status in (401, 403)]
    referers = [answer.request.headers.get("referer", "") for answer in heard.answers]
    ticket, secret = link.partition("#")[2], password(settings)
    told = (*referers, page.url, *(answer.url for answer in heard.answers))
    assert not [text for text in told if ticket in text or secret in text]
    assert heard.elsewhere == []
    assert ticket not in page.evaluate("JSON.stringify(performance.getEntries())")
    page.go_back()
    assert ticket not in page.url

    page.evaluate("localStorage.clear()")
    page.goto(link)
    expect(page.get_by_text("used already, or is too old")).to_be_visible()
    assert page.evaluate("localStorage.getItem('prefect-password')") is None and "#" not in page.url


def test_the_login_can_be_typed_and_the_name_of_the_machine_may_be_another(settings: Settings, page: Page) -> None:
    ui, heard = settings.prefect_url.replace("127.0.0.1", "localhost"), Heard(page, settings)
    page.goto(ui)
    wait_for_login(page).fill(":".join(services.prefect_login(settings) or ()))
    assert {answer.status for answer in heard.answers} >= {401}
    page.get_by_role("button", name="Login").click()
    wait_for_dashboard(page)
    expect(page.get_by_text("Dashboard").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert heard.elsewhere == [] and heard.answers[-1].status not in (401, 403)
    page.screenshot(path=os.environ.get("REFIT_TEST_SCREENSHOT") or Path(settings.home, "ui.png"))
