"""Two people with browsers: one works in a session, is moved, and shares it; the other visits, until that ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, WebSocket, expect

from flows import services
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.homes.folders import folder_of
from flows.sessions.model import Session
from tests.support.browser import new_page, open_browser
from tests.support.hub import PASSWORD, RELEASE, Hub, publish, running_hub
from tests.support.lab import never_mind_the_server, open_terminal, type_in_terminal
from tests.support.machine import FIRST, RegistryServer
from tests.support.my_sessions import BASE
from tests.support.people import OUT_SECONDS
from tests.support.pictures import picture
from tests.support.variants import JUPYTER, variant
from tests.support.waiting import free_port, running_seconds, wait_until

pytestmark = pytest.mark.long


@dataclass
class Story:
    """The Hub, JupyterLab's image as it came from the build, and the session once it has been started."""

    hub: Hub
    shared: Settings
    built: str

    @property
    def session(self) -> Session:
        return self.hub.sessions.store.session("ada")

    def publish(self, name: str, day: str) -> str:
        """Let a new image be the newest of the profile; returns its digest."""
        settings, source = self.hub.settings, self.shared.repository
        labels = {"io.refit.profile": FIRST, "io.refit.release": RELEASE, "io.refit.access": JUPYTER.as_label()}
        digest = variant(settings, Registry(settings), self.built, source, name, labels=labels)
        publish(settings, digest, day)
        return digest


@pytest.fixture(scope="module")
def story(
    registry_server: RegistryServer,
    base: Built,
    jupyter_image: str,
    shared: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("two") / "home"
    ports = {"prefect_port": free_port(), "jump_port": free_port()}
    with running_hub(registry_server, base, folder, registry=f"127.0.0.1:{registry_server.port}", **ports) as hub:
        services.up(hub.settings)
        yield Story(hub, shared, jupyter_image)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def accept_invitation(page: Page, link: str) -> None:
    page.goto(link)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_label("The same again").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/hub/home")


def start_session(page: Page, hub: Hub) -> None:
    """Start a session from the Hub's form; the waiting page leads to JupyterLab by itself."""
    page.goto(f"{hub.settings.gateway_url}/hub/spawn/ada")
    page.locator(f"input[value='{RELEASE}/{FIRST}']").check()
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/session/ada/**")
    expect(page.locator("#jp-main-dock-panel")).to_be_visible()


def share_by_link(page: Page) -> str:
    """Share the session that the page is about; returns the link for the other person."""
    form = page.locator("form[action$='/do/share']")
    form.locator("select[name=kind]").select_option("code")
    form.get_by_role("button").click()
    return page.locator(".note code").inner_text()


def migrate(hub: Hub) -> None:
    """The work of a schedule: it tells people, hears what they answered, and moves those who rest."""
    hub.refit("migrate", "run", "--once")


def test_one_works_is_moved_and_shares_and_the_other_visits_until_that_ends(story: Story, browser: Browser) -> None:
    hub, adas, bens = story.hub, new_page(browser), new_page(browser)
    story.publish("the first", "20261122")
    accept_invitation(adas, hub.invited("ada"))
    start_session(adas, hub)
    open_terminal(adas)
    type_in_terminal(adas, folder_of(story.session.home), "before")

    newer = story.publish("the next", "20261123")
    migrate(hub)
    notice = adas.locator(".refit-notice")
    expect(notice).to_contain_text("ada is to get a new image")
    picture(adas, "notice")
    adas.get_by_role("button", name="In 2 hours").click()
    expect(notice).to_have_count(0)
    migrate(hub)

    never_mind_the_server(adas)
    mine = adas.context.new_page()
    mine.goto(f"{hub.settings.gateway_url}{BASE}/sessions/ada")
    expect(mine.get_by_text("You have put it off")).to_be_visible()
    mine.get_by_role("button", name="Move now").click()
    wait_until(lambda: story.session.image == newer)
    expect(notice).to_contain_text("is on another image now")
    notice.get_by_role("button", name="Close").click()
    type_in_terminal(adas, folder_of(story.session.home), "after")

    link = share_by_link(mine)
    accept_invitation(bens, hub.invited("ben"))
    bens.goto(link)
    bens.get_by_role("button", name="Accept").click()
    expect(bens.get_by_role("button", name="Open the session")).to_be_visible()
    closed: list[float] = []
    bens.on("websocket", lambda channel: _watch(channel, closed))
    bens.get_by_role("button", name="Open the session").click()
    expect(bens.locator("#jp-main-dock-panel")).to_be_visible()
    type_in_terminal(bens, folder_of(story.session.home), "by-ben")

    mine.reload()
    picture(mine, "my-session-shared")
    began = running_seconds()
    mine.get_by_role("button", name="End the share of ben").click()
    revoked = running_seconds()
    wait_until(lambda: bens.evaluate("true") and closed)  # events come in while a page is asked
    assert began <= closed[0] <= revoked + OUT_SECONDS
    answer = bens.goto(f"{hub.settings.gateway_url}/session/ada/lab")
    assert answer and answer.status == 403
    type_in_terminal(adas, folder_of(story.session.home), "alone-again")
    visits = [one for one in History(hub.sessions.store.database).events("ada") if one.kind is Kind.visited]
    assert [one.by for one in visits if one.data["role"] == "shared"] == ["ben"]


def _watch(channel: WebSocket, closed: list[float]) -> None:
    """Note when a terminal's connection ends."""
    if "/terminals/websocket/" in channel.url:
        channel.on("close", lambda _: closed.append(running_seconds()))
