"""Every page that people see around their sessions, in a real browser, with its picture in the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
from playwright.sync_api import Browser, Page, expect

from flows.images.build import Built
from flows.migrations.executor import MoveExecutor
from flows.migrations.rollouts.store import Rollouts
from flows.sessions.containers.podman import Podman
from flows.sessions.model import Running
from tests.support.browser import new_page, open_browser
from tests.support.hub import PASSWORD, RELEASE, Hub, Person, made, publish
from tests.support.machine import FIRST
from tests.support.moving import to
from tests.support.my_sessions import BASE, api
from tests.support.pictures import DOCS, look, picture
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.long
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPxTeBnBYYPqTA2LkyOB+Xb2DHl5s8GFQBlVKnxmCHy ada@laptop"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page of somebody new."""
    page = new_page(browser)
    yield page
    page.context.close()


def log_in(page: Page, hub: Hub, name: str) -> None:
    page.goto(f"{hub.settings.gateway_url}/hub/login")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.locator("#login_submit").click()
    page.wait_for_url("**/home")


def test_pages_before_the_login(hub: Hub, page: Page) -> None:
    url = hub.settings.gateway_url
    page.goto(f"{url}/hub/login")
    look(page, "login", ours=False)
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill("wrong")
    page.locator("#login_submit").click()
    expect(page.get_by_text("Invalid username or password")).to_be_visible()
    look(page, "login-refused", ours=False, kept=False)
    link = hub.invited("ivy")
    page.goto(link)
    look(page, "invitation", ours=False)
    hub.person("ivo")
    assert page.goto(link[:-3] + "xyz")
    look(page, "invitation-expired", ours=False)
    answer = page.goto(f"{url}/hub/enter?code=used")
    assert answer and answer.status == 410
    look(page, "link-used", ours=False)


def test_pages_of_one_session_with_shares_keys_snapshots_and_a_history(hub: Hub, ada: Person, page: Page) -> None:
    hub.person("gil")
    hub.refit("session", "share", "ada", "--with", "gil", "--until", "2d")
    mine = api(ada)
    assert mine("POST", "/sessions/ada/snapshots", json={"name": "before-the-course"}).status_code == 202
    mine.settled("ada")
    mine("POST", "/keys", json={"keys": KEY})
    hub.sessions.execute("ada", ["sh", "-c", "echo more >~/notes.txt"])
    log_in(page, hub, "ada")
    url = f"{hub.settings.gateway_url}{BASE}"
    page.goto(f"{url}/sessions/ada")
    look(page, "my-session-desktop")
    page.get_by_role("link", name="Changes since before-the-course").click()
    expect(page.get_by_role("heading", name="Since")).to_be_visible()
    page.locator("details").first.evaluate("node => { node.open = true }")
    look(page, "snapshot-compared")
    form = page.locator("form[action$='/do/share']")
    form.locator("select[name=kind]").select_option("code")
    form.get_by_role("button").click()
    expect(page.locator(".note code")).to_be_visible()
    look(page, "share-link")
    page.goto(f"{url}/")
    page.get_by_text("Your own machine", exact=True).click()
    expect(page.get_by_text("@cert-authority")).to_be_visible()
    look(page, "my-sessions-desktop")
    answer = page.goto(f"{url}/sessions/nobodys")
    assert answer and answer.status == 404
    look(page, "no-such-session")
    mine("POST", "/keys/remove", json={"key": "ada@laptop"})
    hub.refit("session", "unshare", "ada", "--with", "gil")


def test_the_page_of_operators_with_a_rollout_going_on(hub: Hub, ada: Person, page: Page, base: Built) -> None:
    chief = hub.person("captain", "--admin")
    rollouts, image = Rollouts(hub.sessions.store.database), made(hub.settings, base, "pictured")
    publish(hub.settings, image, "20261128")
    rollouts.begin({(FIRST, RELEASE): image}, {}, "a test")
    wait_until(lambda: image[7:19] in chief.sees(f"{BASE}/all"))
    log_in(page, hub, "captain")
    page.goto(f"{hub.settings.gateway_url}{BASE}/all")
    expect(page.get_by_role("button", name="Pause").first).to_be_visible()
    look(page, "operators")
    page.get_by_role("button", name="Pause").first.click()
    expect(page.get_by_text("paused", exact=True).first).to_be_visible()
    look(page, "operators-paused", kept=False)
    page.get_by_role("button", name="Abort").first.click()
    expect(page.get_by_text("aborted", exact=True).first).to_be_visible()


def test_the_pages_by_which_a_program_is_let_in(hub: Hub, ada: Person, page: Page) -> None:
    begun = ada.client.post(f"{BASE}/device_authorization", data={"client_id": "ada's laptop"}).json()
    log_in(page, hub, "ada")
    page.goto(f"{hub.settings.gateway_url}{BASE}/device")
    look(page, "code")
    page.get_by_label("Code").fill(begun["user_code"])
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("ada's laptop")).to_be_visible()
    look(page, "let-in-desktop")
    page.get_by_role("button", name="Let it in").click()
    expect(page.get_by_role("button", name="Let it in")).to_have_count(0)
    look(page, "let-in-done", kept=False)


def test_the_pages_of_guests(hub: Hub, eve: Person, page: Page) -> None:
    hub.person("guy")
    shared = hub.refit("session", "share", "eve", "--code", "--until", "2h")
    [link] = re.findall(r"http\S+", shared)
    log_in(page, hub, "guy")
    page.goto(link)
    look(page, "accept-share", ours=False)
    page.get_by_role("button", name="Accept").click()
    expect(page.get_by_role("button", name="Open the session")).to_be_visible()
    look(page, "guest")
    page.goto(f"{hub.settings.gateway_url}{BASE}/")
    expect(page.get_by_text("Shared with me")).to_be_visible()
    look(page, "shared-with-me")
    page.goto(link)
    look(page, "share-used", ours=False)
    hub.refit("session", "unshare", "eve", "--with", "guy")

    def refused() -> bool:
        answer = page.goto(f"{hub.settings.gateway_url}/session/eve/")
        return bool(answer and answer.status == 403)

    wait_until(refused)
    look(page, "refused")


def test_pages_of_the_hub_for_a_new_session_up_to_its_limits(hub: Hub, page: Page) -> None:
    una, boss = hub.person("una"), hub.person("head", "--admin")
    boss.api("POST", "/groups/two")
    assert boss.api("POST", "/groups/two/users", users=["una"]).status_code == 200
    wait_until(lambda: "of 2 sessions" in una.sees(f"{BASE}/"))
    url = hub.settings.gateway_url
    log_in(page, hub, "una")
    picture(page, "servers")
    page.goto(f"{url}/hub/spawn/una")
    page.locator(f"input[value='{RELEASE}/{FIRST}']").check()
    picture(page, "hub-form")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/session/una/**")
    assert una.start("more").status_code == 200
    una.reaches("/session/una--more/api")
    # While one is being made, the page comes anew by itself, and over the next one that is asked for.
    wait_until(lambda: "is being made" not in (seen := una.sees(f"{BASE}/")) and "You have 2 of 2 sessions" in seen)
    page.goto(f"{url}{BASE}/")
    look(page, "limits")
    page.goto(f"{url}/hub/spawn/una/third")
    expect(page.get_by_text("You can't have another session now")).to_be_visible()
    picture(page, "hub-form-limits")
    page.goto(f"{url}/hub/token")
    picture(page, "tokens")


def test_the_pages_of_a_session_that_is_away(hub: Hub, page: Page) -> None:
    sam = hub.person("sam")
    sam.start()
    sam.reaches("/session/sam/api")
    hub.sessions.stop("sam")
    assert hub.sessions.show("sam").running is not Running.running
    log_in(page, hub, "sam")
    page.goto(f"{hub.settings.gateway_url}/session/sam/")
    expect(page.get_by_role("heading")).to_be_visible()
    look(page, "stopped")
    page.goto(f"{hub.settings.gateway_url}{BASE}/sessions/sam")
    look(page, "my-session-stopped", kept=False)


def test_the_page_of_a_session_that_moves(hub: Hub, page: Page, base: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    uma = hub.person("uma")
    uma.start()
    uma.reaches("/session/uma/api")
    image, go_on, start = made(hub.settings, base, "of one that moves"), Event(), Podman.start

    def start_later(self: Podman, container: str) -> None:
        go_on.wait(PATIENCE)
        start(self, container)

    log_in(page, hub, "uma")
    monkeypatch.setattr(Podman, "start", start_later)
    move = replace(to(hub.sessions, "uma", image), forced=True)
    with ThreadPoolExecutor() as beside:
        moving = beside.submit(MoveExecutor.open(hub.settings).carry_out, move)
        try:
            wait_until(lambda: uma.client.get("/session/uma/").status_code == 503)
            page.goto(f"{hub.settings.gateway_url}/session/uma/")
            expect(page.get_by_role("heading", name="uma is being moved")).to_be_visible()
            look(page, "away")
        finally:
            go_on.set()
    assert moving.result().moved, moving.result().reason


def test_each_picture_of_the_docs_is_shown_there() -> None:
    shown = {name for file in DOCS.glob("*.md") for name in re.findall(r"\]\(([a-z0-9-]+\.png)\)", file.read_text())}
    assert {file.name for file in DOCS.glob("*.png")} == shown
