"""JupyterLab in a browser: its terminal, and the dialogs that are in the way."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page

from tests.support.waiting import wait_until


def open_terminal(page: Page) -> None:
    """Open one by the menu."""
    page.get_by_role("menuitem", name="File", exact=True).click()
    for label in ("New", "Terminal"):
        page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{label}$")).click()


def type_in_terminal(page: Page, home: Path, name: str) -> str:
    """Let the terminal that has a tab on the page make a file in the home; returns the rows and columns that it has."""
    page.locator(".lm-TabBar-tabLabel", has_text="Terminal 1").click()
    page.locator(".jp-Terminal .xterm").click()
    page.keyboard.type(f"stty size >typing && mv typing typed-{name}\n")
    wait_until((home / f"typed-{name}").exists)
    return (home / f"typed-{name}").read_text()


def give_up_terminals(page: Page) -> None:
    """Let JupyterLab try at once, not at times that it draws by lot, to reach terminals again that are away.

    So it has given up by the time at which they are back, as after a long stop.
    """
    page.evaluate("Math.random = () => 0")


def never_mind_the_server(page: Page) -> None:
    """Close what JupyterLab may say in a dialog: that it had no server for a moment."""
    away = page.locator(".jp-Dialog", has_text="Server Connection Error")
    page.add_locator_handler(away, lambda: away.get_by_role("button", name="Close").click())
