"""A real browser that waits as long as the other tests do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from playwright.sync_api import Browser, Locator, Page, TimeoutError, expect, sync_playwright

from flows.core.settings import Settings
from flows.services import tickets
from tests.support.waiting import PATIENCE

_DASHBOARD = re.compile("/dashboard")
CHROMIUM = "/usr/bin/chromium"
# Root needs the first; the others keep the browser from looking for its makers.
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_MILLISECONDS = 1000 * PATIENCE
_STALLED = 60_000  # milliseconds
_RELOADS = 5


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser of its own, without pages."""
    expect.set_options(timeout=_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET], timeout=_MILLISECONDS)
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: Browser) -> Page:
    """An empty page of somebody who shares no cookies with those of other pages."""
    context = browser.new_context()
    context.set_default_timeout(_MILLISECONDS)
    return context.new_page()


@contextmanager
def open_page() -> Iterator[Page]:
    """An empty page of a browser of its own."""
    with open_browser() as browser:
        yield new_page(browser)


def log_in(page: Page, settings: Settings) -> None:
    """Open Prefect's UI by the link that `refit up` prints."""
    page.goto(tickets.link(settings))
    wait_for_dashboard(page)


def wait_for_dashboard(page: Page) -> None:
    """Wait for the dashboard of Prefect's UI."""
    _reloading(page, lambda milliseconds: page.wait_for_url(_DASHBOARD, timeout=milliseconds))


def wait_for_login(page: Page) -> Locator:
    """Wait for the field of Prefect's UI that takes a login."""
    field = page.locator("input[type=password]")
    _reloading(page, lambda milliseconds: field.wait_for(timeout=milliseconds))
    return field


def _reloading(page: Page, wait: Callable[[float], None]) -> None:
    """Wait for something, by milliseconds. On busy machines the UI stops on its way there: it is reloaded then."""
    for _ in range(_RELOADS):
        with suppress(TimeoutError):
            return wait(_STALLED)
        page.reload()
    return wait(_MILLISECONDS)


@pytest.fixture
def page() -> Iterator[Page]:
    with open_page() as opened:
        yield opened
