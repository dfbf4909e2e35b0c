"""The pages in a real browser: nothing runs over at the width of a phone, and pictures of them for the docs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.browser import open_page
from tests.support.hub import PASSWORD, Hub, Person
from tests.support.my_sessions import BASE

DOCS = Path(__file__).parents[3] / "docs"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
PAGES = {"my-sessions": f"{BASE}/", "my-session": f"{BASE}/sessions/ada", "let-in": f"{BASE}/device"}


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_their_window_and_show_no_error(hub: Hub, ada: Person, size: str, scheme: str) -> None:
    """With REFIT_DOCS_PICTURES, the pictures of the docs are made anew."""
    width, height = SIZES[size]
    with open_page() as page:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(f"{hub.settings.gateway_url}/hub/login")
        page.fill("#username_input", "ada")
        page.fill("#password_input", PASSWORD)
        page.click("#login_submit")
        page.wait_for_url("**/home")
        refused: list[str] = []
        page.on("console", lambda said: refused.append(said.text) if said.type == "error" else None)
        for name, path in PAGES.items():
            answer = page.goto(f"{hub.settings.gateway_url}{path}")
            assert answer and answer.status == 200
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.evaluate("getComputedStyle(document.body).margin") == "0px", "its style is refused"
            if os.environ.get("REFIT_DOCS_PICTURES") and (size, scheme) == ("desktop", "light"):
                page.screenshot(path=DOCS / f"{name}-{size}.png", full_page=True)
        assert not [text for text in refused if "favicon" not in text]
