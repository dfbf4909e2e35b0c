"""Sessions behind the gateway, for real: moved, killed, opened in a browser, at one address with one token."""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import psutil
import pytest
from playwright.sync_api import expect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.sync.server import ServerConnection, serve

from flows import services
from flows.core.programs import command
from flows.core.settings import Settings
from flows.gateway import routes
from flows.host import tools
from flows.images.registry import Registry
from flows.migrations import orphaned_moves
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import Phase
from flows.services import embedded
from flows.services.process import alone, end
from flows.sessions.homes.folders import folder_of
from flows.sessions.ide.jupyter import Jupyter
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from tests.support.browser import open_page
from tests.support.drafts import check_drafts, type_drafts
from tests.support.killing import DeadlyJournal
from tests.support.machine import FIRST, RegistryServer, home_with_gateway
from tests.support.moving import carry_out, to
from tests.support.processes import in_a_process
from tests.support.variants import JUPYTER, variant
from tests.support.waiting import PATIENCE, PATIENTLY, free_port, wait_until

NAME = "ada"
SERVICES = ("gateway", "waiting-page")
POLL_SECONDS = 0.05


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with home_with_gateway(tmp_path_factory.mktemp("gateway") / "home", registry_server.port) as settings:
        yield settings


@pytest.fixture(scope="module")
def sessions(settings: Settings) -> Sessions:
    return Sessions.open(settings)


@pytest.fixture(scope="module")
def ada(sessions: Sessions, jupyter_image: str) -> str:
    """The URL of a session with JupyterLab."""
    return sessions.url(sessions.create(NAME, FIRST, "2026a", jupyter_image, JUPYTER))


def channels(ada: str) -> Connection:
    """The channels of a kernel, behind the gateway."""
    return connect(f"ws{ada.removeprefix('http')}/api/kernels/x/channels", proxy=None, open_timeout=PATIENCE)


def get(url: str, **headers: str) -> httpx.Response:
    return httpx.get(url, headers=headers, **PATIENTLY)


@dataclass
class Seen:
    """The answers to somebody who kept asking."""

    pages: list[httpx.Response]
    stories: list[dict[str, Any]]
    statuses: set[int]


@contextmanager
def asking(url: str, token: str) -> Iterator[Seen]:
    """Keep asking for the page, as a browser, and for the API, as a program."""
    seen, enough = Seen([], [], set()), threading.Event()

    def ask() -> None:
        while not enough.wait(POLL_SECONDS):
            page = get(f"{url}/lab", Accept="text/html", Authorization=f"token {token}")
            told = get(f"{url}/api/status", Authorization=f"token {token}")
            seen.statuses |= {page.status_code, told.status_code}
            seen.pages.append(page)
            if told.status_code == 503:
                seen.stories.append(told.json())

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield seen
    finally:
        enough.set()
        asker.join()


def test_a_session_that_moves_keeps_its_address_and_its_token_and_says_meanwhile_what_happens(
    settings: Settings, sessions: Sessions, ada: str, jupyter_image: str
) -> None:
    assert ada == f"{settings.gateway_url}/session/{NAME}"
    before = sessions.store.session(NAME)
    address, token = sessions.address(NAME), sessions.token(before)
    assert Jupyter(ada, token).execute("print(6 * 7)") == "42\n"  # by a websocket through the gateway
    new = variant(settings, Registry(settings), jupyter_image, settings.repository, "behind the gateway")
    with asking(ada, token) as seen:
        result = carry_out(MoveExecutor.open(settings), to(sessions, NAME, new))
        assert result.moved, result.reason
        wait_until(lambda: seen.pages and seen.pages[-1].status_code == 200)
    assert sessions.store.session(NAME).image == new
    assert (sessions.address(NAME), sessions.token(before)) == (address, token)
    assert Jupyter(ada, token).execute("print(6 * 7)") == "42\n"
    assert seen.statuses == {200, 503}
    assert {story["session"] for story in seen.stories} == {NAME} and "moving" in {
        story["why"] for story in seen.stories
    }
    moving = [page for page in seen.pages if "is being moved onto another image" in page.text]
    assert len(moving) > 1 and all("Retry-After" in page.headers for page in moving)


def test_who_was_at_it_when_a_session_ends_hears_that_it_comes_back(sessions: Sessions, ada: str) -> None:
    with breaking_off() as place:
        sessions.gateway.route(NAME, place)
        page = get(f"{ada}/lab", Accept="text/html")
        assert page.status_code == 503 and int(page.headers["Retry-After"]) >= 1 and "<h1>" in page.text
        sessions.gateway.route(NAME, place)
        told = httpx.put(f"{ada}/api/contents/x", json={"much": "more"}, **PATIENTLY)
        assert (told.status_code, told.json()["session"]) == (503, NAME)
    with breaking_off(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf") as place:
        sessions.gateway.route(NAME, place)
        with pytest.raises(httpx.RemoteProtocolError):  # by itself, the proxy lets people wait for the rest for ever
            get(f"{ada}/files/big")
    with serve(hanging_up, "127.0.0.1", 0) as kernel:
        threading.Thread(target=kernel.serve_forever, daemon=True).start()
        sessions.gateway.route(NAME, f"http://127.0.0.1:{kernel.socket.getsockname()[1]}")
        with channels(ada) as channel:
            assert channel.recv(timeout=PATIENCE) == "busy"
            with pytest.raises(ConnectionClosed) as closed:
                channel.recv(timeout=PATIENCE)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == CloseCode.SERVICE_RESTART


def hanging_up(channel: ServerConnection) -> None:
    channel.send("busy")
    channel.socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def breaking_off(said: bytes = b"") -> Iterator[str]:
    """A place where everybody is hung up on, after what is said."""

    class Server(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(said)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_gateway_that_begins_anew_is_told_where_sessions_are_and_meanwhile_nobody_needs_it(
    settings: Settings, sessions: Sessions, ada: str
) -> None:
    with alone(settings):
        assert end(embedded.gateway(settings))
    assert not sessions.gateway.runs
    session = sessions.store.session(NAME)
    sessions.wait_ready(session)
    assert get(f"{sessions.url(session)}/api").status_code == 200  # the container's own address
    services.up(settings, only=SERVICES)
    wait_until(lambda: get(f"{ada}/api").status_code == 200)
    assert sessions.url(session) == ada


@pytest.mark.parametrize("taken", ["gateway_port", "gateway_api_port"])
def test_a_gateway_whose_port_is_taken_ends_so_that_it_is_started_again(
    settings: Settings, ada: str, taken: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"gateway_port": free_port(), "gateway_api_port": free_port(), taken: other.getsockname()[1]}
        gateway = embedded.gateway(settings.model_copy(update=ports))
        environment = {**os.environ, **gateway.environment}
        ended = subprocess.run(
            gateway.argv, cwd=gateway.folder, env=environment, timeout=PATIENCE, check=False, capture_output=True
        )
    assert ended.returncode == 1 and b"EADDRINUSE" in ended.stdout + ended.stderr


def test_only_whoever_knows_its_token_tells_the_gateway_anything(settings: Settings, ada: str) -> None:
    api = f"http://127.0.0.1:{settings.gateway_api_port}/api/routes"
    assert get(api).status_code == get(api, Authorization="token guessed").status_code == 403
    for state in services.status(settings):
        if state.name in SERVICES:
            token = (settings.home / "services/gateway/token").read_text()
            assert token not in " ".join(psutil.Process(state.pid).cmdline())
            listening = [c.laddr for c in psutil.Process(state.pid).net_connections("tcp") if c.status == "LISTEN"]
            assert {place.ip for place in listening} <= {"127.0.0.1"}
    assert (settings.home / "services/gateway/token").stat().st_mode & 0o077 == 0
    assert (settings.home / "services/waiting-page/socket").stat().st_mode & 0o077 == 0


def test_a_session_that_died_is_found_again_when_it_is_back(settings: Settings, sessions: Sessions, ada: str) -> None:
    container = sessions.store.session(NAME).container
    command.run([*tools.podman(settings), "kill", container], root=True)
    wait_until(lambda: get(f"{ada}/api").status_code == 503)
    wait_until(lambda: get(f"{ada}/api").json().get("why") == "missing")

    def told() -> bool:
        get(f"{ada}/api")  # its page asks again and again: Podman may still have called it running the first time
        return (sessions.gateway.table() or {}).get(routes.path(NAME)) == routes.WAITING_PAGE

    wait_until(told)
    with pytest.raises(InvalidStatus, match="503"):
        channels(ada)
    sessions.engine.start(container)  # nobody tells the gateway, and its address is another one now
    wait_until(lambda: get(f"{ada}/api").status_code == 200)


@pytest.mark.long
def test_f10_who_comes_while_a_session_is_away_reads_why_and_is_let_in_by_itself(sessions: Sessions, ada: str) -> None:
    sessions.stop(NAME)
    with open_page() as page:
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        answer = page.goto(sessions.address(NAME))
        assert answer is not None and answer.status == 503
        expect(page.get_by_role("heading", name=f"{NAME} was stopped by its owner")).to_be_visible()
        expect(page.locator("code")).to_have_text(f"refit session start {NAME}")
        sessions.start(NAME)
        expect(page.locator(".jp-Launcher")).to_be_visible()  # nobody has touched anything
        assert not problems


@pytest.mark.long
def test_f10_a_page_that_is_open_says_why_its_session_is_away_and_goes_on_when_it_is_back(
    sessions: Sessions, ada: str
) -> None:
    with open_page() as page:
        page.goto(sessions.address(NAME))
        expect(page.locator(".jp-Launcher")).to_be_visible()
        sessions.stop(NAME)
        notice = page.locator(".refit-notice")
        expect(notice).to_contain_text(f"{NAME} was stopped by its owner")
        sessions.start(NAME)
        expect(notice).to_have_count(0)
        expect(page.locator(".jp-Launcher")).to_be_visible()
        assert not page.get_by_text("Server Connection Error").count()


@pytest.mark.long
def test_who_saves_while_a_session_is_away_hears_why_that_cant_be_and_can_when_it_is_back(
    sessions: Sessions, ada: str
) -> None:
    session = sessions.store.session(NAME)
    with open_page() as page:
        page.goto(sessions.address(NAME))
        expect(page.locator(".jp-Launcher")).to_be_visible()
        drafts = type_drafts(page, sessions.jupyter(session), ada, "away")
        sessions.stop(NAME)
        page.keyboard.press("Control+s")
        error = page.locator(".jp-Dialog")
        expect(error).to_contain_text("File Save Error for away.ipynb")
        expect(error).to_contain_text(f"{NAME} was stopped by its owner")
        error.get_by_role("button", name="Close").click()
        sessions.start(NAME)
        expect(page.locator(".refit-notice")).to_have_count(0)
        check_drafts(page, drafts, folder_of(session.home))


@pytest.mark.long
def test_f01_a_session_that_a_killed_run_has_left_away_comes_back_while_nobody_does_anything(
    settings: Settings, sessions: Sessions, ada: str, jupyter_image: str
) -> None:
    new = variant(settings, Registry(settings), jupyter_image, settings.repository, "after a kill")
    decision = replace(to(sessions, NAME, new), agreed=True)  # somebody may just have saved something there

    def work() -> None:
        journal = DeadlyJournal(settings, "snapshot", Phase.intent)
        MoveExecutor(settings, Sessions.open(settings), journal).carry_out(decision)

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    wait_until(lambda: get(f"{ada}/api").json().get("why") == "interrupted")
    wait_until(lambda: get(f"{ada}/api").status_code == 200, 4 * orphaned_moves.PATIENCE.total_seconds())
    wait_until(lambda: not Journal(sessions.store.database).unfinished())
    assert sessions.store.session(NAME).image == new


def test_a_session_that_is_gone_leaves_no_route(sessions: Sessions, ada: str) -> None:
    assert any(status.running is Running.running for status in sessions.all())
    sessions.remove(NAME, purge=True)
    assert get(f"{ada}/api").status_code == 404
    assert routes.path(NAME) not in (sessions.gateway.table() or {})
