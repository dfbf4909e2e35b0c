"""The pages in a real browser: nothing runs over at the width of a phone, and nothing is refused by its policy."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.support.browser import open_page
from tests.support.hub import PASSWORD, Hub, Person
from tests.support.my_sessions import BASE

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
PAGES = {"my-sessions": f"{BASE}/", "my-session": f"{BASE}/sessions/ada", "let-in": f"{BASE}/device"}


def log_in(page: Page, hub: Hub, name: str) -> None:
    page.goto(f"{hub.settings.gateway_url}/hub/login")
    page.fill("#username_input", name)
    page.fill("#password_input", PASSWORD)
    page.click("#login_submit")
    page.wait_for_url("**/home")


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
        assert not [text for text in refused if "favicon" not in text]
