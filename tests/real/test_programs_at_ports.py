"""Programs at ports of sessions, behind real Jupyter servers: they get a request, and nothing that opens a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from flows.catalog.model import Catalog
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.sessions.homes.folders import folder_of
from flows.sessions.model import Session
from tests.support.hub import RELEASE, Hub, Person, running_hub
from tests.support.ide_images import IdeImages
from tests.support.machine import RegistryServer
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until

pytestmark = pytest.mark.long
PORT = 7005
# Writes down whatever comes to it, as a program that logs its requests does.
LOGGING = """
import http.server, json, pathlib, sys

class Logging(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with pathlib.Path.home().joinpath("asked").open("a") as file:
            file.write(json.dumps([self.path, sorted(self.headers.items())]) + chr(10))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Logging).serve_forever()
"""


@dataclass(frozen=True)
class Scene:
    """A session of Ada's with a program at a port, which she has open in her browser."""

    hub: Hub
    session: Session
    ada: Person

    @property
    def path(self) -> str:
        return f"{self.session.path}/proxy/{PORT}"

    @property
    def asked(self) -> list[str]:
        file = folder_of(self.session.home) / "asked"
        return file.read_text().splitlines() if file.exists() else []

    def arrived(self, path: str) -> dict[str, str]:
        """The headers of the request for a path, in small letters."""
        wait_until(lambda: any(json.loads(line)[0] == path for line in self.asked))
        [headers] = [headers for asked, headers in map(json.loads, self.asked) if asked == path]
        return {name.lower(): value for name, value in headers}

    def assert_nothing_opens_the_session(self) -> None:
        """No request had the token anywhere, nor a cookie of a login, which is named by the host of the browser."""
        assert self.asked
        for line in self.asked:
            assert self.hub.sessions.token(self.session) not in line
            cookies = [value for name, value in json.loads(line)[1] if name.lower() == "cookie"]
            assert not [line for line in cookies if "username-" in line]

    @property
    def is_logged_in(self) -> bool:
        """Whether the Jupyter server knows Ada's browser by a cookie."""
        return any(cookie.name.startswith("username-") for cookie in self.ada.client.cookies.jar)


@pytest.fixture(scope="module")
def hub(registry_server: RegistryServer, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder: Path = tmp_path_factory.mktemp("ports") / "home"
    with running_hub(registry_server, base, folder, subdomain_host="none") as hub:
        yield hub


@pytest.fixture(scope="module")
def ada(hub: Hub) -> Person:
    return hub.person("ada")


@pytest.fixture(params=["jupyter", "terminal"])
def scene(
    request: pytest.FixtureRequest,
    hub: Hub,
    ada: Person,
    shared: Settings,
    builder: Builder,
    catalog: Catalog,
    assembler: Assembler,
) -> Iterator[Scene]:
    ide = request.param
    image = IdeImages(hub.settings, shared, builder, catalog, assembler).build(ide, f"with ports {ide}")
    session = hub.sessions.create(ide, image.profile, RELEASE, image.digests[0], image.access, owner="ada")
    call = ["python3", "-c", LOGGING, str(PORT)]
    hub.sessions.execute(ide, ["sh", "-c", 'setsid "$@" >/dev/null 2>&1 &', "sh", *call])
    page = f"{session.path}{image.access.page.split('?')[0]}"
    wait_until(lambda: ada.client.get(page).status_code == httpx.codes.OK)
    scene = Scene(hub, session, ada)
    wait_until(lambda: ada.client.get(f"{scene.path}/ready").text == "ok")
    yield scene
    hub.sessions.remove(ide, purge=True)
    for cookie in [one for one in ada.client.cookies.jar if one.name.startswith("username-")]:
        ada.client.cookies.jar.clear(cookie.domain, cookie.path, cookie.name)


def test_a_program_at_a_port_is_told_neither_token_nor_login(scene: Scene) -> None:
    """By the browser of somebody who is logged in at the Jupyter server, and by a program with a token of the Hub."""
    ada, client, hub = scene.ada, scene.ada.client, scene.hub
    client.cookies.set("theme", "dark", path=scene.session.path)
    assert scene.is_logged_in
    # Browsers send a login at another port of the same host as well.
    client.cookies.set("username-localhost-9000", "of-a-tunnel", path=scene.session.path)
    assert client.get(f"{scene.path}/by-browser", headers={"Accept": "*/*"}).text == "ok"
    assert scene.arrived("/by-browser")["cookie"].split("; ").count("theme=dark") == 1

    token = ada.token()
    if scene.session.access.protocol == "jupyter":  # elsewhere, a program gets no further than the login
        answer = httpx.get(f"{hub.settings.gateway_url}{scene.path}/by-program", headers=token, **PATIENTLY)
        assert answer.text == "ok"
        assert "authorization" not in scene.arrived("/by-program")
        address = f"ws{hub.settings.gateway_url.removeprefix('http')}{scene.path}/socket"
        with (
            pytest.raises((InvalidHandshake, ConnectionClosed)),
            connect(address, additional_headers=token, proxy=None) as channel,
        ):
            channel.recv(PATIENCE)
        assert "authorization" not in scene.arrived("/socket")
    scene.assert_nothing_opens_the_session()


def test_past_the_gateway_too_and_what_is_a_programs_own_reaches_it(scene: Scene) -> None:
    """Where nobody logs in at a Hub, people come with the token itself."""
    sessions, session = scene.hub.sessions, scene.session
    direct = f"{sessions.direct_url(session)}/proxy/{PORT}"
    token = sessions.token(session)
    for number, scheme in enumerate(("token", "Bearer", "tOkEn ")):
        answer = httpx.get(f"{direct}/{number}", headers={"Authorization": f"{scheme} {token}"}, **PATIENTLY)
        assert answer.text == "ok"
        assert "authorization" not in scene.arrived(f"/{number}")
    queries = {f"a=1&token={token}&b=2": "a=1&b=2", f"token=%20{token}+": "", f"token=mine&token={token}": "token=mine"}
    for number, (query, rest) in enumerate(queries.items()):
        page = f"{direct}/?{query}"
        answer = httpx.get(f"{direct}/query-{number}?{query}", headers={"Referer": page}, **PATIENTLY)
        assert (answer.status_code, answer.text) == (httpx.codes.OK, "ok"), answer.headers
        arrived = scene.arrived(f"/query-{number}?{rest}" if rest else f"/query-{number}")
        assert arrived["referer"] == page.removesuffix(f"?{query}") + (f"?{rest}" if rest else "")
    scene.assert_nothing_opens_the_session()
