"""A real browser that waits as long as the other tests do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, expect, sync_playwright

from flows.core.settings import Settings
from flows.services import tickets
from tests.conftest import PATIENCE

CHROMIUM = "/usr/bin/chromium"
# Root needs the first; the others keep the browser from looking for its makers.
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_MILLISECONDS = 1000 * PATIENCE


@contextmanager
def open_page() -> Iterator[Page]:
    """An empty page of a browser of its own."""
    expect.set_options(timeout=_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET], timeout=_MILLISECONDS)
        try:
            page = browser.new_page()
            page.set_default_timeout(_MILLISECONDS)
            yield page
        finally:
            browser.close()


def log_in(page: Page, settings: Settings) -> None:
    """Open Prefect's UI by the link that `refit up` prints."""
    page.goto(tickets.link(settings))
    page.wait_for_url(re.compile("/dashboard"))
