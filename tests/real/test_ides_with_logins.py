"""IDEs and ports behind logins, in a real browser: the owner gets in, a guest with a share, a stranger doesn't.

RStudio's package is out of reach of most machines: a program stands in for it that asks of a gateway what it asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, WebSocket, expect

from flows.catalog.model import Catalog
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.sessions.homes.folders import folder_of
from flows.sessions.model import Session
from tests.support.browser import new_page, open_browser
from tests.support.hub import PASSWORD, RELEASE, Hub, running_hub
from tests.support.ide_images import IdeImages
from tests.support.machine import ROOT, RegistryServer
from tests.support.my_sessions import BASE
from tests.support.people import OUT_SECONDS
from tests.support.waiting import free_port, running_seconds, wait_until

pytestmark = pytest.mark.long
TOKEN = re.compile("[?&]token=")
# Of Langflow's own page, with what the browser has of it. Its `fetch` is Langflow's, and wants options.
LOOK_AT_FLOWS = """() => new Promise((resolve) => {
  const asked = new XMLHttpRequest();
  asked.open("GET", "api/v1/flows/?get_all=true");
  asked.onloadend = () => resolve(asked.status);
  asked.send();
})"""
MAKE_FLOW = """(name) => fetch("api/v1/flows/", {
  method: "POST",
  headers: {"Content-Type": "application/json"},
  body: JSON.stringify({name, data: {nodes: [], edges: []}}),
}).then((answer) => answer.status)"""
STAND_IN = ROOT / "tests" / "support" / "stand_in_ide.py"


@dataclass
class Visitor:
    """Somebody's browser, and the websockets that are open in it."""

    name: str
    page: Page
    open_sockets: list[WebSocket] = field(default_factory=list)
    closed: dict[WebSocket, float] = field(default_factory=dict)
    with_token: list[str] = field(default_factory=list)

    def listen(self, page: Page) -> Page:
        """Note the websockets of a page."""

        def opened(channel: WebSocket) -> None:
            self.open_sockets.append(channel)
            channel.on("close", closed)

        def closed(channel: WebSocket) -> None:
            self.open_sockets.remove(channel)
            self.closed[channel] = running_seconds()

        page.on("websocket", opened)
        page.on("request", lambda asked: self.with_token.append(asked.url) if TOKEN.search(asked.url) else None)
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
        visitor = Visitor(name, page)
        visitor.listen(page)
        return visitor

    def session(self, name: str, ide: str) -> Session:
        made = self.images.build(ide, f"with logins {ide}")
        return self.hub.sessions.create(name, made.profile, RELEASE, made.digests[0], made.access, owner="ada")

    def open(self, session: str, place: str) -> Page:
        """The owner's page of a session, by its link, or at a place below its address."""
        page = self.owner.listen(self.owner.page.context.new_page())
        page.goto(f"{self.hub.settings.public_url}{BASE}/sessions/{session}")
        page.get_by_role("link", name="Open", exact=True).click()
        page.wait_for_url(f"{self.host}/session/{session}/**")
        if place:
            page.goto(f"{self.host}/session/{session}/{place}")
        return page

    def come_and_go(self, session: str, works: Callable[[Page], None], place: str = "") -> Page:
        """The owner, a guest and a stranger come to a session; returns the guest's page, with the share over."""
        page = self.come(session, works, place)
        hub, guest = self.hub, self.guest
        held, owners = self.sockets(guest, session), self.sockets(self.owner, session)
        assert held and owners
        hub.refit("session", "unshare", session, "--with", guest.name)
        revoked = running_seconds()
        wait_until(lambda: guest.page.evaluate("true") and not held & set(guest.open_sockets))
        assert max(guest.closed[one] for one in held) - revoked <= OUT_SECONDS
        assert page.evaluate("true") and owners <= set(self.owner.open_sockets)
        assert not self.owner.with_token + guest.with_token, "an address with the IDE's token came to a browser"
        return guest.page

    def come(self, session: str, works: Callable[[Page], None], place: str = "") -> Page:
        """The owner and a guest with a share work in a session, and a stranger doesn't; returns the owner's page."""
        hub, guest, stranger = self.hub, self.guest, self.stranger
        page = self.open(session, place)
        works(page)
        address = page.url
        for one in (guest, stranger):
            answer = one.page.goto(address)
            assert answer and answer.status == 403, one.name
        hub.refit("session", "share", session, "--with", guest.name)
        guest.page.goto(address)
        guest.page.get_by_role("button", name="Open the session").click()
        guest.page.wait_for_url(f"{self.host}/session/{session}/**")
        works(guest.page)
        answer = stranger.page.goto(address)
        assert answer and answer.status == 403
        return page

    def assert_out(self, page: Page) -> None:
        answer = page.goto(page.url)
        assert answer and answer.status == 403

    @staticmethod
    def sockets(visitor: Visitor, session: str) -> set[WebSocket]:
        """Those that are open to a session."""
        return {one for one in visitor.open_sockets if f"/session/{session}/" in one.url}

    @property
    def host(self) -> str:
        return f"http://ada.localhost:{self.hub.settings.gateway_port}"

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


@pytest.fixture(scope="module")
def shell(house: House) -> Session:
    """A session of the web terminal."""
    return house.session("shell", "terminal")


def test_the_web_terminal(house: House, shell: Session) -> None:
    typed: list[str] = []

    def works(page: Page) -> None:
        name = f"typed-{len(typed)}"
        typed.append(name)
        page.locator(".xterm").click()
        page.keyboard.type(f"echo here >{name}\n")
        wait_until((folder_of(shell.home) / name).exists)

    house.assert_out(house.come_and_go("shell", works))


def test_vs_code_with_a_webview(house: House) -> None:
    """A preview of Markdown is a page of its own, in frames, which a service worker of VS Code's gives its files."""
    session = house.session("code", "vscode")
    # The pane of the chat opens over the editor while people work there.
    settings = '{"workbench.secondarySideBar.defaultVisibility": "hidden"}'
    script = f"cd; echo '{settings}' | install -D /dev/stdin .local/share/code-server/User/settings.json"
    house.hub.sessions.execute("code", ["sh", "-euc", f"{script}; echo '# A heading' >notes.md"])
    typed: list[str] = []

    def works(page: Page) -> None:
        page.get_by_role("treeitem", name="notes.md").dblclick()
        text = page.locator(".editor-instance .view-lines").first
        expect(text).to_contain_text("heading")
        text.click()
        page.keyboard.press("Control+End")
        typed.append(f"word-{len(typed)}")
        page.keyboard.type(f"\n{typed[-1]}\n")
        page.keyboard.press("Control+s")
        wait_until(lambda: typed[-1] in (folder_of(session.home) / "notes.md").read_text())
        page.keyboard.press("Control+k")
        page.keyboard.press("v")
        preview = page.frame_locator("iframe.webview").frame_locator("iframe#active-frame")
        expect(preview.get_by_role("heading", name="A heading")).to_be_visible()
        expect(preview.get_by_text(typed[-1])).to_be_visible()

    house.assert_out(house.come_and_go("code", works))


def test_langflow(house: House) -> None:
    """While nothing runs in it, it has no websocket. The end of a right is seen at the next request."""
    session = house.session("flows", "langflow")
    made: list[str] = []

    def works(page: Page) -> None:
        page.get_by_test_id("mainpage_title").or_(page.get_by_test_id("new_project_btn_empty_page")).first.wait_for()
        made.append(f"flow-{len(made)}")
        status = page.evaluate(MAKE_FLOW, made[-1])
        assert status == 201, status
        page.reload()
        expect(page.get_by_text(made[-1], exact=True).first).to_be_visible()

    page = house.come("flows", works)
    guest = house.guest
    house.hub.refit("session", "unshare", "flows", "--with", guest.name)
    revoked = running_seconds()
    wait_until(lambda: guest.page.evaluate(LOOK_AT_FLOWS) == 403)
    assert running_seconds() - revoked <= OUT_SECONDS
    assert page.evaluate(LOOK_AT_FLOWS) == 200
    assert not house.owner.with_token + guest.with_token
    house.assert_out(guest.page)
    assert house.hub.sessions.token(session) not in page.content()


@pytest.mark.parametrize("below", ["proxy/absolute/7001", "proxy/7002"])
def test_a_port_of_a_session_and_an_ide_that_stands_in_for_rstudio(house: House, shell: Session, below: str) -> None:
    """A program that knows its base path, and one that doesn't. A guest opens its address, and nothing before."""
    port = below.rpartition("/")[2]
    session_path = f"/session/shell/{below}" if "absolute" in below else ""
    call = ["python3", "-c", STAND_IN.read_text(), port, session_path]
    house.hub.sessions.execute("shell", ["sh", "-c", 'setsid "$@" >/dev/null 2>&1 &', "sh", *call])

    def works(page: Page) -> None:
        expect(page.locator("#socket")).to_have_text("hello")
        expect(page.locator("#stream")).to_have_text("open")
        expect(page.locator("#wide")).to_have_text("refused")  # a worker that answers for all of the host
        expect(page.locator("#worker")).to_have_text("by the worker")
        cookies = page.locator("#cookies").inner_text()
        assert "forged" not in cookies and ("theme=dark" in cookies or not session_path)
        page.evaluate("(name) => save(name)", f"saved-{port}")
        wait_until((folder_of(shell.home) / f"saved-{port}").exists)

    works(house.open("shell", f"{below}/" if session_path else f"{below}/page"))
    guest, hub = house.guest, house.hub
    guest.page.context.clear_cookies(name=re.compile("^username-"))  # of an earlier visit
    hub.refit("session", "share", "shell", "--with", guest.name)
    page = guest.listen(guest.page.context.new_page())
    page.goto(f"{house.host}/session/shell/{below}/" if session_path else f"{house.host}/session/shell/{below}/page")
    if (button := page.get_by_role("button", name="Open the session")).is_visible():
        button.click()
    works(page)
    assert page.url.startswith(f"{house.host}/session/shell/{below}/")
    hub.refit("session", "unshare", "shell", "--with", guest.name)
    token = hub.sessions.token(shell)
    assert token not in (folder_of(shell.home) / f"asked-{port}").read_text(), (
        "a program at a port was told the token of the IDE"
    )
    assert not guest.with_token + house.owner.with_token
