"""The web terminal behind logins, in a real browser: the owner gets in, a guest with a share, a stranger doesn't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, WebSocket

from flows.catalog.model import Catalog
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.sessions.model import Session
from tests.support.browser import new_page, open_browser
from tests.support.hub import PASSWORD, RELEASE, Hub, running_hub
from tests.support.ide_images import IdeImages
from tests.support.machine import RegistryServer
from tests.support.my_sessions import BASE
from tests.support.waiting import free_port, wait_until

pytestmark = pytest.mark.long


@dataclass
class Visitor:
    """Somebody's browser, and the websockets that are open in it."""

    name: str
    page: Page
    open_sockets: list[WebSocket]
    refused: list[str]

    def listen(self, page: Page) -> Page:
        """Note the websockets of a page."""

        def opened(channel: WebSocket) -> None:
            self.open_sockets.append(channel)
            channel.on("close", lambda _: self.open_sockets.remove(channel))

        page.on("websocket", opened)
        page.on("request", lambda asked: self.refused.append(asked.url) if "token=" in asked.url else None)
        return page


@dataclass
class House:
    """A Hub whose people have a host each, and the session of an IDE, which is Ada's."""

    hub: Hub
    browser: Browser
    images: IdeImages

    def visitor(self, name: str) -> Visitor:
        """Somebody who has just accepted an invitation."""
        page = new_page(self.browser)
        page.goto(self.hub.invited(name))
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_label("The same again").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/hub/home")
        visitor = Visitor(name, page, [], [])
        visitor.listen(page)
        return visitor

    def session(self, name: str, ide: str) -> Session:
        made = self.images.build(ide, f"with logins {ide}")
        return self.hub.sessions.create(name, made.profile, RELEASE, made.digests[0], made.access, owner="ada")

    def come_and_go(self, session: str, works: Callable[[Page], None], *, sockets: bool = True) -> Page:
        """The owner, a guest and a stranger come to a session; returns the owner's page."""
        hub = self.hub
        host = f"http://ada.localhost:{hub.settings.gateway_port}"
        owner = self.owner
        page = owner.listen(owner.page.context.new_page())
        page.goto(f"{hub.settings.public_url}{BASE}/sessions/{session}")
        page.get_by_role("link", name="Open", exact=True).click()
        page.wait_for_url(f"{host}/session/{session}/**")
        works(page)
        assert not sockets or [one for one in owner.open_sockets if f"/session/{session}/" in one.url]
        guest, stranger = self.guest, self.stranger
        address = page.url
        for one in (guest, stranger):
            answer = one.page.goto(address)
            assert answer and answer.status == 403, one.name
        hub.refit("session", "share", session, "--with", guest.name)
        guest.page.goto(address)
        guest.page.get_by_role("button", name="Open the session").click()
        guest.page.wait_for_url(f"{host}/session/{session}/**")
        works(guest.page)
        answer = stranger.page.goto(address)
        assert answer and answer.status == 403
        held = [one for one in guest.open_sockets if f"/session/{session}/" in one.url]
        assert held or not sockets
        hub.refit("session", "unshare", session, "--with", guest.name)
        wait_until(lambda: guest.page.evaluate("true") and not set(held) & set(guest.open_sockets))
        answer = guest.page.goto(address)
        assert answer and answer.status == 403
        assert not owner.refused + guest.refused, "an address with the IDE's token came to a browser"
        return page

    def __post_init__(self) -> None:
        self.owner, self.guest, self.stranger = (self.visitor(name) for name in ("ada", "ben", "eve"))


@pytest.fixture(scope="module")
def house(
    registry_server: RegistryServer,
    base: Built,
    shared: Settings,
    builder: Builder,
    catalog: Catalog,
    assembler: Assembler,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    port = free_port()
    more = {"gateway_port": port, "subdomain_host": f"http://localhost:{port}"}
    folder = tmp_path_factory.mktemp("doors") / "home"
    with running_hub(registry_server, base, folder, **more) as hub, open_browser() as browser:
        yield House(hub, browser, IdeImages(hub.settings, shared, builder, catalog, assembler))


def test_the_web_terminal(house: House) -> None:
    session = house.session("shell", "terminal")
    typed: list[str] = []

    def works(page: Page) -> None:
        name = f"typed-{len(typed)}"
        typed.append(name)
        page.locator(".xterm").click()
        page.keyboard.type(f"echo here >{name}\n")
        wait_until((session.home / name).exists)

    house.come_and_go("shell", works)
