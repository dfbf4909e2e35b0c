"""JupyterHub in front of sessions, for real: invited, logged in, started from the form, moved, handed over, removed."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from flows import services
from flows.cli.main import app
from flows.core.settings import Settings
from flows.core.settings_environment import variables
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.sessions.wishes import PreferenceStore
from flows.web.hub import client, passes
from flows.web.hub.client import HubClient
from tests.support.machine import FIRST, ROOT, RegistryServer, private_home
from tests.support.moving import to
from tests.support.variants import JUPYTER, LIGHT, sign, variant
from tests.support.waiting import PATIENCE, PATIENTLY, free_port, wait_until

RELEASE = "2026a"
SERVICES = ("gateway", "waiting-page", "hub", "authorizer")
PASSWORD = "correct horse battery"
# Answers below the path that the session has, so that it is seen who is met there.
_IDE = 'mkdir -p "/tmp/www$NB_PREFIX" && cd /tmp/www && echo "this is $NB_PREFIX" >".$NB_PREFIX/api"'
_SERVE = "exec python3 -m http.server 8000"


@dataclass
class Hub:
    """A Hub with everything around it."""

    settings: Settings
    image: str

    @property
    def sessions(self) -> Sessions:
        return Sessions.open(self.settings)

    @property
    def pid(self) -> int:
        [hub] = [state for state in services.status(self.settings) if state.name == "hub"]
        assert hub.pid
        return hub.pid

    def refit(self, *words: str) -> str:
        """What the command prints."""
        result = CliRunner().invoke(app, words, env=variables(self.settings), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def invited(self, name: str) -> str:
        [link] = re.findall(r"http\S+", self.refit("user", "invite", name))
        return link

    def person(self, name: str) -> Person:
        person = Person(self, name)
        person.accept(self.invited(name))
        return person

    def server(self, person: str, server: str) -> bool:
        """Whether the Hub has a server running."""
        people = {one.name: one.servers for one in HubClient(self.settings).people()}
        return people.get(person, {}).get(server, False)

    def container(self, session: str) -> tuple[str, int]:
        [found] = self.sessions.engine.containers(session)
        return found.name, found.pid

    def token(self, session: str) -> dict[str, str]:
        """With which a program gets to the IDE of a session."""
        return {"Authorization": f"token {self.sessions.token(self.sessions.store.session(session))}"}

    def check_routes(self) -> None:
        """Let the Hub compare its routes with the gateway's, as it does every 30 s."""
        headers = {"Authorization": f"token {client.token(self.settings)}"}
        url = f"{self.settings.hub_url}/hub/api/proxy"
        httpx.post(url, headers=headers, **PATIENTLY).raise_for_status()

    def again(self) -> None:
        services.up(self.settings, only=SERVICES)


@dataclass
class Person:
    """Somebody with a browser."""

    hub: Hub
    name: str
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"follow_redirects": True, "headers": {"Accept": "text/html"}, **PATIENTLY}
        self.client = httpx.Client(base_url=self.hub.settings.gateway_url, **options)

    def accept(self, link: str, password: str = PASSWORD) -> httpx.Response:
        return self.send(link, "/hub/invite", code=link.partition("code=")[2], password=password, again=password)

    def log_in(self, password: str = PASSWORD) -> httpx.Response:
        return self.send("/hub/login", "/hub/login?next=", username=self.name, password=password)

    def send(self, page: str, to: str, **values: str) -> httpx.Response:
        """Fill in the form of a page."""
        shown = self.client.get(page)
        [xsrf, *_] = [*re.findall(r'(?:name="_xsrf"\s+value="|[?]_xsrf=)([^"&]*)"', shown.text), ""]
        return self.client.post(to, data={"_xsrf": unescape(xsrf), **values})

    def api(self, method: str, path: str, **more: object) -> httpx.Response:
        headers = {"X-XSRFToken": self.client.cookies.get("_xsrf", path="/hub/") or ""}
        return self.client.request(method, f"/hub/api{path}", headers=headers, json=more)

    def start(self, server: str = "") -> httpx.Response:
        page = f"/hub/spawn/{self.name}{f'/{server}' if server else ''}"
        return self.send(page, page, profile=f"{RELEASE}/{FIRST}")

    def reaches(self, path: str) -> str:
        """The session that answers at a path, as soon as one does."""
        seen = [""]
        wait_until(lambda: seen.append(self.sees(path)) or seen[-1].startswith("this is /session/"))
        return seen[-1].strip().removeprefix("this is /session/")

    def sees(self, path: str) -> str:
        return self.client.get(path).text


@contextmanager
def always_reached(hub: Hub, session: str) -> Iterator[list[int]]:
    """Keep asking for a session at the gateway; gives what it answered."""
    seen, enough = list[int](), threading.Event()
    url, headers = f"{hub.settings.gateway_url}/session/{session}/api", hub.token(session)

    def ask() -> None:
        while not enough.wait(0.05):
            seen.append(httpx.get(url, headers=headers, **PATIENTLY).status_code)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield seen
    finally:
        enough.set()
        asker.join()


@pytest.fixture(scope="module")
def hub(registry_server: RegistryServer, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub") / "home"
    ports = {"gateway_port": free_port(), "gateway_api_port": free_port(), "hub_port": free_port()}
    with private_home(folder, registry_server.port, gateway=True, hub=True, catalog=ROOT, **ports) as settings:
        image = made(settings, base, "of people")
        for tag in (f"{FIRST}_{RELEASE}", f"{FIRST}_{RELEASE}_20261121"):
            registry = Registry(settings)
            manifest = registry.manifest(settings.repository, image)
            registry.put_manifest(settings.repository, tag, manifest.content, manifest.media_type)
        try:
            services.up(settings, only=SERVICES)
            yield Hub(settings, image)
        finally:
            services.down(settings)


def made(settings: Settings, base: Built, name: str) -> str:
    labels = {"io.refit.profile": FIRST, "io.refit.release": RELEASE, "io.refit.access": LIGHT.as_label()}
    start, source = ["sh", "-c", f"{_IDE}; {_SERVE}"], f"{settings.repository}/stages"
    return variant(settings, Registry(settings), base.digest, source, name, start, labels)


@pytest.fixture(scope="module")
def ada(hub: Hub) -> Person:
    """Somebody whose session runs."""
    ada = hub.person("ada")
    ada.start()
    assert ada.reaches("/user/ada/api") == "ada"
    return ada


def test_nobody_has_an_account_without_an_invitation_and_each_works_once(hub: Hub) -> None:
    eve = Person(hub, "eve")
    assert eve.client.get("/hub/signup").status_code == 404
    assert eve.log_in().status_code == 403
    link = hub.invited("bob")
    assert eve.client.get(link.replace("code=", "code=x")).status_code == 410
    assert eve.accept(link, password="short").status_code == 400
    bob = Person(hub, "bob")
    assert bob.accept(link).url.path == "/hub/home" and "bob" in bob.sees("/hub/home")
    assert eve.client.get(link).status_code == 410
    xsrf = eve.client.cookies.get("_xsrf", path="/hub/")
    late = {"code": link.partition("code=")[2], "password": PASSWORD, "again": PASSWORD}
    assert eve.client.post("/hub/invite", data=late, headers={"X-XSRFToken": xsrf or ""}).status_code == 410
    assert "/hub/login" in str(eve.client.get("/hub/home").url)
    assert Person(hub, "bob").log_in().url.path == "/hub/home"
    assert "bob" in hub.refit("user", "list")


def test_a_session_is_started_from_the_form_and_reached_by_its_address_and_by_the_hubs(hub: Hub) -> None:
    grace = hub.person("grace")
    form = grace.sees("/hub/spawn/grace")
    assert f"{RELEASE}/{FIRST}" in form and "GB, image" in form and "There is no image of it yet." in form
    grace.start()
    assert grace.reaches("/user/grace/api") == "grace"
    session = hub.sessions.show("grace")
    assert session.running is Running.running and session.session.image == hub.image
    assert PreferenceStore(hub.sessions.store.database).of("grace").owner == "grace"
    reached = grace.client.get("/user/grace/api?x=%2F")
    assert str(reached.url) == f"{hub.settings.gateway_url}/session/grace/api?x=%2F"
    token = hub.sessions.token(session.session)
    logs = "".join(file.read_text(errors="replace") for file in (hub.settings.home / "logs").glob("*.log*"))
    assert token not in logs and token not in form


def test_a_move_changes_where_the_address_leads_and_the_hub_never_undoes_it(hub: Hub, ada: Person, base: Built) -> None:
    before = hub.sessions.gateway.table()
    new = made(hub.settings, base, "moved to")
    with always_reached(hub, "ada") as seen:
        assert MoveExecutor.open(hub.settings).carry_out(to(hub.sessions, "ada", new)).moved
    after = hub.sessions.gateway.table()
    assert before and after and before["/session/ada"] != after["/session/ada"]
    assert set(seen) <= {200, 503} and 200 in seen
    hub.check_routes()
    assert hub.sessions.gateway.table() == after
    assert hub.server("ada", "")
    assert ada.reaches("/user/ada/api") == "ada"


def test_a_hub_that_is_killed_and_started_again_disturbs_nobody(hub: Hub, ada: Person) -> None:
    container = hub.container("ada")
    with always_reached(hub, "ada") as seen:
        os.kill(hub.pid, signal.SIGKILL)
        wait_until(lambda: not next(one for one in services.status(hub.settings) if one.name == "hub").running)
        assert ada.reaches("/user/ada/api") == "ada"  # the authorizer needs no Hub
        hub.again()
        wait_until(lambda: hub.server("ada", ""))
        hub.check_routes()
    assert set(seen) == {200} and len(seen) > 3
    assert hub.container("ada") == container
    assert ada.sees("/hub/home").count("ada")  # who was in is in


def test_an_authorizer_that_stands_still_lets_nobody_in_and_holds_nobody(hub: Hub, ada: Person) -> None:
    [authorizer] = [state for state in services.status(hub.settings) if state.name == "authorizer"]
    assert authorizer.pid
    os.kill(authorizer.pid, signal.SIGSTOP)
    try:
        stranger = httpx.get(f"{hub.settings.gateway_url}/session/ada/api", **PATIENTLY)
    finally:
        os.kill(authorizer.pid, signal.SIGCONT)
    assert (stranger.status_code, stranger.headers["Retry-After"]) == (503, "1")
    assert ada.reaches("/session/ada/api") == "ada"


def test_a_gateway_that_begins_anew_leads_to_the_hub_and_to_all_sessions_again(hub: Hub, ada: Person) -> None:
    [gateway] = [state for state in services.status(hub.settings) if state.name == "gateway"]
    assert gateway.pid
    os.kill(gateway.pid, signal.SIGKILL)
    wait_until(lambda: not next(one for one in services.status(hub.settings) if one.name == "gateway").running)
    hub.check_routes()  # the Hub finds no gateway, and leaves everything as it is
    hub.again()
    wait_until(lambda: ada.client.get("/hub/home").status_code == 200)
    assert ada.reaches("/user/ada/api") == "ada"
    assert hub.server("ada", "")


def test_what_is_done_in_the_shell_is_seen_in_the_hub(hub: Hub, ada: Person) -> None:
    hub.sessions.create("notes", FIRST, RELEASE, hub.image, LIGHT)
    assert "notes" not in ada.sees("/hub/home")
    hub.refit("session", "owner", "notes", "ada")
    wait_until(lambda: hub.server("ada", "notes"))
    assert ada.reaches("/user/ada/notes/api") == "notes"
    hub.sessions.stop("notes")
    wait_until(lambda: not hub.server("ada", "notes"))
    wait_until(lambda: ada.client.get("/user/ada/notes/api").url.path.startswith("/hub/user/ada/notes"))
    hub.refit("session", "start", "notes")
    wait_until(lambda: hub.server("ada", "notes"))
    hub.refit("session", "owner", "notes", "bob")
    wait_until(lambda: not hub.server("ada", "notes"))
    wait_until(lambda: hub.server("bob", "notes"))
    assert hub.sessions.show("notes").running is Running.running


def test_the_servers_of_others_and_forged_cookies_are_refused(hub: Hub, ada: Person) -> None:
    eve = hub.person("eve")
    assert eve.api("DELETE", "/users/ada/server").status_code in (403, 404)
    assert eve.api("POST", "/users/ada/servers/mine").status_code in (403, 404)
    assert eve.client.get("/hub/spawn/ada").status_code in (403, 404)
    assert eve.api("GET", "/users").status_code == 403
    forged = Person(hub, "ada")
    forged.client.cookies.set("jupyterhub-hub-login", "2|1:0|10:1795478437|20:jupyterhub-hub-login|4:YWRh|" + 64 * "a")
    assert "/hub/login" in str(forged.client.get("/hub/home").url)
    # A name that would lead to a session or home of somebody else leads to one of their own.
    hub.sessions.create("eve", FIRST, RELEASE, hub.image, LIGHT)
    eve.start()
    wait_until(lambda: hub.server("eve", ""))
    assert eve.reaches("/user/eve/api").startswith("eve-")
    hub.sessions.remove("eve", purge=True)


def test_nobody_else_gets_to_a_session_and_no_cookie_of_ours_gets_to_an_ide(hub: Hub, ada: Person) -> None:
    url = f"{hub.settings.gateway_url}/session/ada/api"
    assert ada.reaches("/session/ada/api") == "ada"
    stranger = httpx.get(url, **PATIENTLY)
    assert stranger.status_code == 403 and stranger.json()["refit"] == "authorizer"
    sent_away = httpx.get(url, headers={"Accept": "text/html"}, **PATIENTLY)
    assert sent_away.headers["Location"].startswith("/hub/api/oauth2/authorize?")
    odd = httpx.get(
        f"{hub.settings.gateway_url}//evil.example/session/ada/api", headers={"Accept": "text/html"}, **PATIENTLY
    )
    assert "evil" not in odd.headers.get("Location", "")
    for path in ("/session/%61da/api", "/session/eve/../ada/api", "//session/ada/api", "/session/ada%2Fapi"):
        assert b"this is" not in raw(hub, f"GET {path} HTTP/1.1\r\n")
    assert b" 403 " in raw(hub, f"GET /session/ada/api HTTP/1.1\r\nUpgrade: websocket\r\n{UPGRADE}").splitlines()[0]
    assert b" 400 " in raw(hub, "GET /session/%zz HTTP/1.1\r\n").splitlines()[0]
    eve = hub.person("eve2")
    assert eve.client.get("/session/ada/api").status_code == 403
    own = ada.client.cookies.get(passes.PASS) or ""
    content, _, signature = own.partition(".")
    other = base64.urlsafe_b64encode(base64.urlsafe_b64decode(content).replace(b"ada", b"bob")).decode()
    for forged in (f"{other}.{signature}", f"{content}.{'0' * 64}", content, "", "x.y", "ä.ö"):
        cookie = {"Cookie": f"{passes.PASS}={quote(forged)}"}
        assert httpx.get(url, headers=cookie, **PATIENTLY).status_code == 403
    assert httpx.get(url, headers={"Cookie": f"{passes.PASS}={own}"}, **PATIENTLY).status_code == 200
    assert httpx.get(url, headers={"Authorization": "token wrong"}, **PATIENTLY).status_code == 403
    assert httpx.get(url, headers=hub.token("ada"), **PATIENTLY).status_code == 200
    begun = ada.client.get("/authorizer/callback?code=x&state=x", follow_redirects=False)
    assert begun.status_code == 400
    with listening() as (place, heard):
        hub.sessions.gateway.lead("ada", place)
        seen = {"Cookie": f"{passes.PASS}={own}; mine=1; jupyterhub-session-id=x", "Accept": "text/html"}
        httpx.get(f"{url}?a=b", headers=seen, **PATIENTLY)
    hub.sessions.tell_gateway_of("ada")
    assert b"GET /session/ada/api?a=b HTTP" in heard[0] and b"mine=1" in heard[0]
    assert passes.PASS.encode() not in heard[0] and b"jupyterhub" not in heard[0]


def test_jupyterlab_opens_for_its_owner_and_no_address_has_the_token(hub: Hub, ada: Person, jupyter_image: str) -> None:
    registry = Registry(hub.settings)
    sign(hub.settings, registry, registry.manifest(hub.settings.repository, jupyter_image), {})
    session = hub.sessions.create("lab", FIRST, RELEASE, jupyter_image, JUPYTER, owner="ada")
    token = hub.sessions.token(session)
    page = ada.client.get("/session/lab/lab?token=wrong")
    assert page.status_code == 200 and "JupyterLab" in page.text
    urls = [str(one.url) for one in (*page.history, page)] + [one.headers.get("Location", "") for one in page.history]
    assert token not in "".join(urls)
    told = ada.client.get("/session/lab/api/contents", headers={"Accept": "application/json"})
    assert told.status_code == 200 and told.json()["type"] == "directory"
    hub.sessions.remove("lab", purge=True)


UPGRADE = "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"


def raw(hub: Hub, request: str) -> bytes:
    """What the gateway answers to the first lines of a request as they are."""
    close = "" if "Upgrade" in request else "Connection: close\r\n"
    with socket.create_connection(("127.0.0.1", hub.settings.gateway_port), timeout=PATIENCE) as connection:
        connection.sendall(f"{request}Host: x\r\n{close}\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def listening() -> Iterator[tuple[str, list[bytes]]]:
    """A place that hears one request, and answers it."""
    heard = list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hear() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        hearer = threading.Thread(target=hear)
        hearer.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", heard
        hearer.join()


def test_a_server_is_stopped_started_and_deleted_and_its_home_stays_its_owners(hub: Hub, ada: Person) -> None:
    ada.start("gpu")
    wait_until(lambda: hub.server("ada", "gpu"))
    assert ada.reaches("/user/ada/gpu/api") == "ada--gpu"
    assert ada.api("DELETE", "/users/ada/servers/gpu").status_code in (202, 204)
    wait_until(lambda: not hub.server("ada", "gpu"))
    assert hub.sessions.show("ada--gpu").running is Running.stopped
    page = ada.client.get("/session/ada--gpu/api")
    assert page.status_code == 503 and "was stopped" in page.text
    ada.client.get("/hub/spawn/ada/gpu")  # it has a session, so that nothing is asked
    wait_until(lambda: hub.server("ada", "gpu"))
    assert ada.reaches("/user/ada/gpu/api") == "ada--gpu"
    ada.api("DELETE", "/users/ada/servers/gpu", remove=True)
    wait_until(lambda: hub.sessions.store.find("ada--gpu") is None)
    assert hub.sessions.store.owners()["ada--gpu"] == "ada"
    ada.start("gpu")
    wait_until(lambda: hub.server("ada", "gpu"))
    assert ada.reaches("/user/ada/gpu/api") == "ada--gpu"


def test_a_person_who_is_removed_is_out_and_their_homes_can_be_handed_over(hub: Hub) -> None:
    cyd = hub.person("cyd")
    cyd.start()
    assert cyd.reaches("/user/cyd/api") == "cyd"
    hub.refit("user", "remove", "cyd", "--yes")
    assert "/hub/login" in str(cyd.client.get("/hub/home").url) and cyd.log_in().status_code == 403
    assert hub.sessions.show("cyd").running is Running.stopped
    wait_until(lambda: "/hub/login" in str(cyd.client.get("/session/cyd/api").url))
    hub.refit("session", "owner", "cyd", "bob")
    assert hub.sessions.store.owners()["cyd"] == "bob"


def test_nothing_that_others_can_read_holds_a_secret(hub: Hub) -> None:
    home = hub.settings.home
    secrets = [(home / "services" / "hub" / name) for name in ("token", "cookie_secret", "jupyterhub.sqlite")]
    assert {file.stat().st_mode & 0o777 for file in secrets} == {0o600}
    assert home.stat().st_mode & 0o777 == 0o700
    texts = [file.read_text().strip() for file in secrets[:2]]
    shown = "".join(str(process.info) for process in psutil.process_iter(["cmdline"]))
    logs = "".join(file.read_text(errors="replace") for file in (home / "logs").glob("*.log*"))
    assert not [text for text in texts if text in shown or text in logs]
