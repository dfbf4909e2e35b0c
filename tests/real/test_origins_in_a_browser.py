"""Hosts for each person (`subdomain_host`) in a real browser: what a script of one session gets of another's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from flows.images.build import Built
from flows.images.registry import Registry
from flows.sessions.homes.folders import folder_of
from tests.support.browser import new_page, open_browser
from tests.support.hub import PASSWORD, RELEASE, Hub, running_hub
from tests.support.lab import open_terminal, type_in_terminal
from tests.support.machine import FIRST, RegistryServer
from tests.support.my_sessions import BASE
from tests.support.variants import JUPYTER, sign
from tests.support.waiting import free_port

pytestmark = pytest.mark.long
PEOPLE = ("ada", "ben")
# A script of a page asks another host, with its visitor's cookies: 0 stands for an answer that the browser withholds.
ASK = """async (url) => {
    try { return (await fetch(url, {credentials: "include", headers: {Accept: "application/json"}})).status; }
    catch { return 0; }
}"""
LISTEN = """(url) => new Promise((done) => {
    const channel = new WebSocket(url);
    channel.onopen = () => done("open");
    channel.onerror = () => done("refused");
})"""


@pytest.fixture(scope="module")
def hub(
    registry_server: RegistryServer, base: Built, jupyter_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    """A Hub with a host for each person, and JupyterLab as a session of both."""
    port = free_port()
    more = {"gateway_port": port, "subdomain_host": f"http://localhost:{port}"}
    with running_hub(registry_server, base, tmp_path_factory.mktemp("hosts") / "home", **more) as hub:
        registry = Registry(hub.settings)
        sign(hub.settings, registry, registry.manifest(hub.settings.repository, jupyter_image), {})
        for name in PEOPLE:
            hub.sessions.create(name, FIRST, RELEASE, jupyter_image, JUPYTER, owner=name)
        yield hub


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def come_in(page: Page, link: str) -> None:
    """Accept an invitation."""
    page.goto(link)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_label("The same again").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/hub/home")


def test_jupyterlab_works_at_its_owners_host_and_other_hosts_get_nothing(hub: Hub, browser: Browser) -> None:
    main, port = hub.settings.public_url, hub.settings.gateway_port
    adas, bens = new_page(browser), new_page(browser)
    for page, name in ((adas, "ada"), (bens, "ben")):
        come_in(page, hub.invited(name))
        page.goto(f"{main}{BASE}/")
        page.get_by_role("link", name="Open").first.click()
        page.wait_for_url(f"http://{name}.localhost:{port}/session/{name}/**")
        expect(page.locator("#jp-main-dock-panel")).to_be_visible()
    open_terminal(adas)
    type_in_terminal(adas, folder_of(hub.sessions.store.session("ada").home), "at-a-host")
    # Ben lets Ada visit: her browser has the passes of both hosts then, and a script of Ben's runs in it.
    hub.refit("session", "share", "ben", "--with", "ada")
    visit = adas.context.new_page()
    visit.goto(f"{main}/session/ben/lab")
    visit.get_by_role("button", name="Open the session").click()
    visit.wait_for_url(f"http://ben.localhost:{port}/session/ben/**")
    assert visit.evaluate(ASK, f"http://ben.localhost:{port}/session/ben/api/contents") == 200
    for host in (f"http://ada.localhost:{port}", main, f"http://ben.localhost:{port}"):
        assert visit.evaluate(ASK, f"{host}/session/ada/api/contents") in (0, 403), host
    channel = f"ada.localhost:{port}/session/ada/terminals/websocket/1"
    assert visit.evaluate(LISTEN, f"ws://{channel}") == "refused"
    assert visit.evaluate(ASK, f"{main}{BASE}/api/sessions") in (0, 401)
    assert adas.evaluate(ASK, f"http://ada.localhost:{port}/session/ada/api/contents") == 200
