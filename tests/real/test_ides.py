"""Sessions from IDEs that stand behind the Jupyter server: real npm packages, a token, a prefix, and a move."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect
from websockets.sync.client import connect

from flows.catalog.model import Catalog
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.gateway import routes
from flows.images.build import Builder
from flows.images.recipe import Assembler
from flows.migrations.executor import MoveExecutor
from flows.migrations.notifications.notifier import Notifier
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.sessions.activity.probes import look_at
from flows.sessions.homes.folders import folder_of
from flows.sessions.ide.jupyter import check_page
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.wishes import PreferenceStore
from tests.support.browser import open_page
from tests.support.ide_images import IdeImages
from tests.support.machine import RegistryServer, home_with_gateway
from tests.support.moving import furnish, manifest, to
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until

pytestmark = pytest.mark.long

# Folders of the person in the home, beside those of IDEs.
THEIRS = (".cache", ".config", ".jupyter", ".langflow", ".local")


@dataclass(frozen=True)
class Opened:
    """A session of an IDE, and another image of it to move to."""

    sessions: Sessions
    session: Session
    next_image: str

    @property
    def url(self) -> str:
        return self.sessions.direct_url(self.session)

    @property
    def client(self) -> httpx.Client:
        headers = {"Authorization": f"token {self.sessions.token(self.session)}"}
        return httpx.Client(base_url=self.url, headers=headers, **PATIENTLY)


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A page that stays open through a move needs an address that stays."""
    with home_with_gateway(tmp_path_factory.mktemp("ides") / "home", registry_server.port) as settings:
        yield settings


@pytest.fixture(params=["terminal", "vscode", "langflow"])
def opened(
    request: pytest.FixtureRequest,
    settings: Settings,
    shared: Settings,
    builder: Builder,
    catalog: Catalog,
    assembler: Assembler,
) -> Opened:
    made = IdeImages(settings, shared, builder, catalog, assembler).build(request.param, "old", "new")
    sessions = Sessions.open(settings)
    session = sessions.create("grace", made.profile, "2026a", made.digests[0], made.access)
    request.addfinalizer(lambda: sessions.remove("grace", purge=True))
    return Opened(sessions, session, made.digests[1])


def test_an_ide_opens_below_its_prefix_with_its_token_and_not_without_and_moves(
    opened: Opened, settings: Settings
) -> None:
    assert opened.url.endswith(routes.path("grace"))
    page = opened.session.access.page.split("?")[0]
    assert opened.sessions.address("grace").startswith(f"{settings.gateway_url}{opened.session.path}{page}")
    assert httpx.get(f"{opened.url}/api/terminals", **PATIENTLY).status_code == 403
    furnish(opened.sessions, "grace")
    assert [seen.verdict for seen in look_at(settings, opened.sessions.engine, [opened.session])] == ["idle"]
    home = manifest(opened.session.home, without=THEIRS)
    result = MoveExecutor.open(settings).carry_out(to(opened.sessions, "grace", opened.next_image))
    assert result.moved, result.reason
    after = opened.sessions.store.session("grace")
    assert (after.image, after.path) == (opened.next_image, opened.session.path)
    assert manifest(after.home, without=THEIRS) == home
    check_page(opened.sessions.direct_url(after), after.access.page, opened.sessions.token(after))


@pytest.mark.parametrize("opened", ["terminal"], indirect=True)
def test_a_person_works_in_the_web_terminal_and_that_is_seen(opened: Opened, settings: Settings) -> None:
    assert [seen.verdict for seen in look_at(settings, opened.sessions.engine, [opened.session])] == ["idle"]
    with opened.client as client:
        assert client.post("/api/terminals", json={"name": "main"}).status_code == 200
        address = f"ws{opened.url.removeprefix('http')}/terminals/websocket/main"
        with connect(address, additional_headers=dict(client.headers), proxy=None, open_timeout=PATIENCE) as shell:
            shell.send(json.dumps(["stdin", "echo $((6*7)) > answer; cat answer; pwd; id -u\r"]))
            said, deadline = "", time.monotonic() + 30
            while f"\n{opened.session.uid}\r" not in said and time.monotonic() < deadline:
                kind, *text = json.loads(shell.recv(timeout=PATIENCE))
                said += str(text[0]) if kind == "stdout" else ""
    assert f"42\r\n/home/dev\r\n{opened.session.uid}\r\n" in said
    assert (folder_of(opened.session.home) / "answer").read_text() == "42\n"
    (seen,) = look_at(settings, opened.sessions.engine, [opened.session])
    assert seen.verdict == "busy"
    assert any("somebody typed" in line.text for line in seen.evidence)


@pytest.mark.parametrize("opened", ["langflow"], indirect=True)
def test_a_person_makes_a_flow_in_langflow_and_that_is_seen(opened: Opened, settings: Settings) -> None:
    def verdict() -> str:
        return look_at(settings, opened.sessions.engine, [opened.session])[0].verdict

    with opened.client as client:
        page = client.get("/langflow/").raise_for_status().text
        assert f'<base href="{opened.session.path}/langflow/" />' in page
        assert "https://" not in page  # it asks nobody else for anything
        for part in re.findall(r'"\./(assets/[^"]+)"', page):
            client.get(f"/langflow/{part}").raise_for_status()
        assert verdict() == "idle"

        def seen() -> bool:
            client.post("/langflow/api/v1/flows/", json={"name": "mine", "data": {}}).raise_for_status()
            return verdict() == "busy"

        wait_until(seen)
    database = folder_of(opened.session.home) / ".local/share/langflow/langflow.db"
    assert database.stat().st_uid == opened.session.uid


@pytest.mark.parametrize("opened", ["vscode"], indirect=True)
def test_a_notice_is_shown_and_answered_in_vs_code(opened: Opened, settings: Settings) -> None:
    line = Decision("grace", Action.wait, opened.session.image, opened.next_image, Reason.busy)
    database = open_database(settings.database)
    teller = Notifier(
        settings, opened.sessions, database, lambda old, new: "+humanize 4.17.0", lambda name: None, lambda name: 8
    )
    assert teller.tell([line]) == ()  # nobody is there
    with open_page() as page:
        page.goto(opened.sessions.address("grace"))
        notice = page.get_by_role("dialog").filter(has_text="grace is to get a new image")
        expect(notice).to_contain_text("+humanize 4.17.0")
        wait_until(lambda: teller.tell([line]) == ("grace",))
        notice.get_by_role("button", name="In 2 hours").click()
        wait_until(lambda: teller.hear([line]) == ("grace",))
    assert PreferenceStore(database).all()["grace"].snoozed_until


@pytest.mark.parametrize("opened", ["vscode"], indirect=True)
def test_what_was_typed_and_not_saved_in_vs_code_is_there_when_its_window_is_loaded_again_after_a_move(
    opened: Opened, settings: Settings
) -> None:
    sessions, home = opened.sessions, folder_of(opened.session.home)
    # By itself, VS Code in a browser saves whatever has a name after a second.
    chosen = """echo '{"files.autoSave": "off"}' | install -D /dev/stdin .local/share/code-server/User/settings.json"""
    sessions.execute("grace", ["sh", "-euc", f"cd; {chosen}; echo 'a first line' >notes.txt"])
    asked: list[str] = []
    with open_page() as page:
        page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
        page.goto(sessions.address("grace"))
        page.get_by_role("treeitem", name="notes.txt").dblclick()
        expect(lines(page)).to_contain_text("first")
        lines(page).click()
        page.keyboard.type("unsaved")
        page.keyboard.press("F1")
        page.locator(".quick-input-widget input").first.fill(">New Untitled Text File")
        page.locator(".quick-input-list .monaco-list-row", has_text=": New Untitled Text File").first.click()
        page.get_by_role("tab", name="Untitled-1").wait_for()
        page.keyboard.type("nameless")
        wait_until(lambda: all(typed in backed_up(home) for typed in ("unsaved", "nameless")))

        result = MoveExecutor.open(settings).carry_out(replace(to(sessions, "grace", opened.next_image), agreed=True))
        assert result.moved, result.reason
        page.get_by_role("button", name="Reload Window").click()  # it can't reconnect
        expect(page.locator(".tab.dirty")).to_have_count(2)
        page.get_by_role("tab", name="nameless").click()
        expect(lines(page)).to_have_text("nameless")
        page.get_by_role("tab", name="notes.txt").click()
        expect(lines(page)).to_contain_text("unsaved")
        lines(page).click()
        page.keyboard.press("Control+s")
        wait_until(lambda: (home / "notes.txt").read_text() == "a first line\nunsaved")
    assert not asked  # whether unsaved changes may be lost


def lines(page: Page) -> Locator:
    """The text in VS Code's editor."""
    return page.locator(".editor-instance .view-lines")


def backed_up(home: Path) -> str:
    """The text that VS Code keeps in the home until somebody saves it."""
    return "".join(file.read_text() for file in home.glob(".local/share/code-server/User/Backups/*/*/*"))
