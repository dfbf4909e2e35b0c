"""Open connections of a guest to a real JupyterLab, each of another kind: all end with the share, the owner's stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from flows.catalog.model import Catalog
from flows.core.database import now
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.sessions.model import Session
from flows.sessions.people.entitlements import Kind, Share
from flows.sessions.people.share_records import Grants
from flows.web.authorizer import passes
from tests.support.hub import RELEASE, Hub, Person, running_hub
from tests.support.ide_images import IdeImages
from tests.support.machine import ROOT, RegistryServer
from tests.support.people import OUT_SECONDS
from tests.support.waiting import PATIENCE, PATIENTLY, running_seconds, wait_until

pytestmark = pytest.mark.long
SESSION, PORT = "lab", 7006
STREAM = "text/event-stream"
STAND_IN = ROOT / "tests" / "support" / "stand_in_ide.py"


@dataclass(frozen=True)
class Opened:
    """A connection: `ends` waits for its end, `lives` raises an error if it has ended."""

    ends: Callable[[], None]
    lives: Callable[[], object]


@dataclass(frozen=True)
class Lab:
    """A JupyterLab of Lin's with a kernel, a terminal and a program at a port, which Ben visits."""

    hub: Hub
    session: Session
    lin: Person
    ben: Person
    kernel: str

    @property
    def url(self) -> str:
        return f"{self.hub.settings.gateway_url}{self.session.path}"

    @property
    def sockets(self) -> dict[str, str]:
        """Kind of websocket → its path below the session."""
        return {
            "kernel": f"/api/kernels/{self.kernel}/channels",
            "events": "/api/events/subscribe",
            "terminal": "/terminals/websocket/main",
            "port": f"/proxy/{PORT}/socket",
        }

    def come(self, person: Person) -> None:
        """Open the page of the IDE, which leaves the login of its server with the browser."""

        def is_in() -> bool:
            told = person.client.get(f"{self.session.path}/lab")
            if told.url.path == "/authorizer/guest":
                person.client.post(str(told.url))
            return "username-" in browser(person)["Cookie"]

        wait_until(is_in)

    @contextmanager
    def opened(self, person: Person) -> Iterator[dict[str, Opened]]:
        """Kind → connection, of somebody who has one of each kind open."""
        headers = browser(person)
        with ExitStack() as stack:
            connections = dict[str, Opened]()
            for kind, path in self.sockets.items():
                address = f"ws{self.url.removeprefix('http')}{path}"
                channel = connect(address, additional_headers=headers, proxy=None, open_timeout=PATIENCE)
                connections[kind] = socket(stack.enter_context(channel))
            # jupyter-server-proxy keeps other answers back until they are whole.
            client = stack.enter_context(httpx.Client(headers={**headers, "Accept": STREAM}, **PATIENTLY))
            parts = stack.enter_context(client.stream("GET", f"{self.url}/proxy/{PORT}/events")).iter_bytes()
            connections["stream"] = Opened(lambda: read_out(parts), lambda: next(parts))
            for one in connections.values():
                one.lives()
            yield connections

    def status(self, person: Person) -> int:
        return httpx.get(f"{self.url}/api", headers=browser(person), **PATIENTLY).status_code


def browser(person: Person) -> dict[str, str]:
    """The cookies of somebody who has opened the session: the pass, and the login of its Jupyter server."""
    sent = [one for one in person.client.cookies.jar if one.name.startswith((passes.PASS, "username-"))]
    return {"Cookie": "; ".join(f"{one.name}={one.value}" for one in sent)}


def socket(channel: Connection) -> Opened:
    def ends() -> None:
        with pytest.raises(ConnectionClosed):
            while True:
                channel.recv(timeout=PATIENCE)

    def lives() -> None:
        assert channel.ping().wait(PATIENCE)
        assert channel.close_code is None

    return Opened(ends, lives)


def read_out(parts: Iterator[bytes]) -> None:
    """Read a stream until it is cut off."""
    with suppress(httpx.RemoteProtocolError):
        for _ in parts:
            pass


@pytest.fixture(scope="module")
def lab(
    registry_server: RegistryServer,
    base: Built,
    shared: Settings,
    builder: Builder,
    catalog: Catalog,
    assembler: Assembler,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    folder: Path = tmp_path_factory.mktemp("open") / "home"
    with running_hub(registry_server, base, folder, subdomain_host="none") as hub:
        image = IdeImages(hub.settings, shared, builder, catalog, assembler).build("jupyter", "with guests")
        sessions = hub.sessions
        session = sessions.create(SESSION, image.profile, RELEASE, image.digests[0], image.access, owner="lin")
        call = ["python3", "-c", STAND_IN.read_text(), str(PORT), ""]
        sessions.execute(SESSION, ["sh", "-c", 'setsid "$@" >/dev/null 2>&1 &', "sh", *call])
        headers, direct = {"Authorization": f"token {sessions.token(session)}"}, sessions.direct_url(session)
        with httpx.Client(headers=headers, **PATIENTLY) as client:
            kernel = client.post(f"{direct}/api/kernels", json={}).raise_for_status().json()["id"]
            client.post(f"{direct}/api/terminals", json={"name": "main"}).raise_for_status()
        yield Lab(hub, session, hub.person("lin"), hub.person("ben"), kernel)


def revoked(lab: Lab) -> None:
    lab.hub.refit("session", "unshare", SESSION, "--with", "ben")


def over(lab: Lab) -> None:
    """Let the share's time be over in a moment: the shell counts in minutes."""
    share = Share(SESSION, "lin", Kind.person, "ben")
    Grants(lab.hub.sessions.store.database).record(share, SESSION, "lin", now())


@pytest.mark.parametrize("end", [revoked, over])
def test_all_connections_of_a_guest_end_in_time_with_the_share(lab: Lab, end: Callable[[Lab], None]) -> None:
    lab.hub.refit("session", "share", SESSION, "--with", "ben")
    lab.come(lab.lin)
    lab.come(lab.ben)
    with lab.opened(lab.ben) as guests, lab.opened(lab.lin) as own:
        end(lab)
        begun, seconds = running_seconds(), dict[str, float]()
        for kind, one in guests.items():
            one.ends()
            seconds[kind] = round(running_seconds() - begun, 2)
        assert max(seconds.values()) <= OUT_SECONDS, json.dumps(seconds)
        assert lab.status(lab.ben) == httpx.codes.FORBIDDEN
        assert lab.status(lab.lin) == httpx.codes.OK
        for one in own.values():
            one.lives()
