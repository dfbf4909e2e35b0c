"""A Hub with gateway and authorizer in front of sessions that are threads of the test: no image, no container."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.sync.server import Server, ServerConnection, serve

from flows import services
from flows.catalog.model import Access
from flows.core.settings.spans import Span
from flows.gateway import routes
from flows.sessions.homes.folders import ref_of
from flows.sessions.model import PREFIX, Session, TokenRef
from flows.sessions.wishes import PreferenceStore
from flows.web.authorizer import passes
from tests.support.hub import SERVICES, Hub, Person
from tests.support.machine import private_home
from tests.support.variants import LIGHT
from tests.support.waiting import PATIENCE, PATIENTLY, free_port, running_seconds, wait_until

# Seconds within which somebody is out who may not use a session any more.
OUT_SECONDS = 2.0


@dataclass
class Ide:
    """A session's IDE: it says where it is, echoes what comes by websockets, and keeps what it was asked."""

    session: str
    asked: list[Request] = field(default_factory=list)
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.server = serve(self._echo, "127.0.0.1", 0, process_request=self._answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.socket.getsockname()[1]}"

    def _echo(self, channel: ServerConnection) -> None:
        for said in channel:
            channel.send(said)

    def _answer(self, channel: ServerConnection, request: Request) -> Response | None:
        self.asked.append(request)
        if "Upgrade" in request.headers:
            return None
        return channel.respond(HTTPStatus.OK, f"this is {routes.path(self.session)}\n")


@dataclass
class People:
    """The Hub, and what the test has made."""

    hub: Hub
    ides: dict[str, Ide] = field(default_factory=dict)

    def session(self, name: str, owner: str, url: str = "", access: Access = LIGHT) -> Ide:
        """A session of somebody, which answers, or in whose place something else does at a URL."""
        settings, store = self.hub.settings, self.hub.sessions.store
        home, token = settings.home / "homes" / name, settings.folder("sessions", name) / "token"
        token.write_text(f"token-of-{name}", encoding="ascii")
        variables = {PREFIX: routes.path(name)}
        store.add(
            name,
            lambda uid: Session(
                name, "p", "2026a", f"sha256:{64 * 'a'}", uid, ref_of(home), TokenRef(str(token)), access, variables
            ),
            uids=Span(first=300_000, last=300_999),
            owner=owner,
        )
        if owner:
            PreferenceStore(store.database).change(name, owner, owner=owner)
        self.ides[name] = Ide(name)
        self.lead(name, url)
        return self.ides[name]

    def lead(self, name: str, url: str = "") -> None:
        """Let the gateway lead to a session, or to something else in its place."""
        self.hub.sessions.gateway.route(name, url or self.ides[name].url)


@contextmanager
def people_alone(folder: Path, **more: Any) -> Iterator[People]:
    """A Hub of its own, with its services."""
    ports = {"gateway_port": free_port(), "gateway_api_port": free_port(), "hub_port": free_port()}
    with private_home(folder, free_port(), **{"gateway": True, "hub": True, **ports, **more}) as settings:
        people = People(Hub(settings, ""))
        try:
            services.up(settings, only=SERVICES)
            yield people
        finally:
            services.down(settings)
            for ide in people.ides.values():
                ide.server.shutdown()


def cookies(person: Person) -> dict[str, str]:
    """The pass in somebody's browser."""
    return {"Cookie": f"{passes.PASS}={person.client.cookies.get(passes.PASS)}"}


def status(hub: Hub, session: str, headers: dict[str, str]) -> int:
    """The status of the answer to a program that asks for a session; 0: the right ended, and the connection with it."""
    try:
        answer = httpx.get(f"{hub.settings.gateway_url}{routes.path(session)}/api", headers=headers, **PATIENTLY)
    except httpx.RemoteProtocolError:
        return 0
    return answer.status_code


def opened(hub: Hub, session: str, headers: dict[str, str]) -> Connection:
    """A terminal in a session."""
    url = f"ws{hub.settings.gateway_url.removeprefix('http')}{routes.path(session)}/terminal"
    return connect(url, additional_headers=headers, proxy=None, open_timeout=PATIENCE)


def says(channel: Connection) -> bool:
    """Whether a terminal answers."""
    channel.send("x")
    return str(channel.recv(timeout=PATIENCE)) == "x"


def assert_out(hub: Hub, session: str, channel: Connection, headers: dict[str, str], since: float) -> None:
    """A terminal has ended in time, with a reason, and doesn't open again.

    Args:
        since: `running_seconds` when the right ended.
    """
    with pytest.raises(ConnectionClosed) as closed:
        channel.recv(timeout=PATIENCE)
    assert running_seconds() - since < OUT_SECONDS
    assert closed.value.rcvd is not None and closed.value.rcvd.code == CloseCode.POLICY_VIOLATION
    with pytest.raises(InvalidStatus) as refused:
        opened(hub, session, headers)
    assert refused.value.response.status_code == HTTPStatus.FORBIDDEN


def come_in(person: Person, session: str) -> None:
    """Open a session as soon as that may be, and go on where a guest is told whose it is."""
    path = f"{routes.path(session)}/api"
    wait_until(lambda: person.client.get(path).status_code == HTTPStatus.OK)
    told = person.client.get(path)
    if told.url.path == "/authorizer/guest":
        told = person.client.post(str(told.url))
    assert told.text.startswith("this is"), told.text
