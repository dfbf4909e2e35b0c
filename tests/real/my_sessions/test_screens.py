"""The pages in a real browser: nothing runs over at the width of a phone, and pictures of them for the docs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import open_page
from tests.support.hub import PASSWORD, Hub, Person
from tests.support.my_sessions import BASE
from tests.support.waiting import wait_until

DOCS = Path(__file__).parents[3] / "docs"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
PAGES = {"my-sessions": f"{BASE}/", "my-session": f"{BASE}/sessions/ada", "let-in": f"{BASE}/device"}


def log_in(page: Page, hub: Hub, name: str) -> None:
    page.goto(f"{hub.settings.gateway_url}/hub/login")
    page.fill("#username_input", name)
    page.fill("#password_input", PASSWORD)
    page.click("#login_submit")
    page.wait_for_url("**/home")


def picture(page: Page, name: str) -> None:
    """With REFIT_DOCS_PICTURES, a picture of the docs is made anew."""
    if os.environ.get("REFIT_DOCS_PICTURES"):
        page.screenshot(path=DOCS / f"{name}.png", full_page=True)


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_their_window_and_show_no_error(hub: Hub, ada: Person, size: str, scheme: str) -> None:
    width, height = SIZES[size]
    with open_page() as page:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        log_in(page, hub, "ada")
        refused: list[str] = []
        page.on("console", lambda said: refused.append(said.text) if said.type == "error" else None)
        for name, path in PAGES.items():
            answer = page.goto(f"{hub.settings.gateway_url}{path}")
            assert answer and answer.status == 200
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.evaluate("getComputedStyle(document.body).margin") == "0px", "its style is refused"
            if (size, scheme) == ("desktop", "light"):
                picture(page, f"{name}-{size}")
        assert not [text for text in refused if "favicon" not in text]


def test_the_pages_of_operators_and_guests_fit_theirs(hub: Hub, ada: Person, eve: Person) -> None:
    hub.person("chief", "--admin")
    hub.refit("session", "share", "eve", "--with", "ada", "--until", "2d")
    wait_until(lambda: "Shared with me" in ada.sees(f"{BASE}/"))
    for name, person, path in (("operators", "chief", f"{BASE}/all"), ("shared-with-me", "ada", f"{BASE}/")):
        with open_page() as page:
            page.set_viewport_size({"width": 1280, "height": 800})
            log_in(page, hub, person)
            answer = page.goto(f"{hub.settings.gateway_url}{path}")
            assert answer and answer.status == 200
            expect(page.get_by_text("eve").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 1280, name
            picture(page, name)
    hub.refit("session", "unshare", "eve", "--with", "ada")
