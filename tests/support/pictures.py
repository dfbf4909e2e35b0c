"""Pages as people see them: they fit their window, their text stands out, and pictures of them are in the docs."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page

from tests.support.machine import ROOT

DOCS = ROOT / "docs"
DESKTOP, PHONE = (1280, 800), (390, 844)
# Text that can be read, and whose contrast with what is behind it is less than large text needs (WCAG: 3).
_FAINT = """() => {
    const parts = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
        .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = (node) => {
        for (let one = node; one; one = one.parentElement) {
            const color = parts(getComputedStyle(one).backgroundColor);
            if (color.length === 3 || color[3] > 0.9) return color;
        }
        const scheme = getComputedStyle(document.documentElement).colorScheme;
        const dark = scheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches;
        return dark ? [18, 18, 18] : [255, 255, 255];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
        if (!text || !node.checkVisibility() || /SCRIPT|STYLE|OPTION/.test(node.tagName)) continue;
        const [one, other] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < 3) faint.push(`${text.slice(0, 40)}: ${contrast.toFixed(1)}`);
    }
    return faint;
}"""


def picture(page: Page, name: str) -> None:
    """With REFIT_DOCS_PICTURES, a picture of the docs is made anew."""
    if os.environ.get("REFIT_DOCS_PICTURES"):
        page.screenshot(path=DOCS / f"{name}.png", full_page=True)


def look(page: Page, name: str, *, ours: bool = True, kept: bool = True) -> None:
    """Look at a page as it is now: at a desk and on a phone, by day and by night; its picture is of the first.

    With REFIT_ALL_PICTURES, pictures of all four are put into that folder.

    Args:
        page: that shows it.
        name: of its picture.
        ours: whether its colours are Refit's, not JupyterHub's.
        kept: whether its picture is one of the docs.
    """
    for width, height in (DESKTOP, PHONE):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            seen = f"{name} at {width}, {scheme}"
            if kept and (width, scheme) == (DESKTOP[0], "light"):
                picture(page, name)
            if folder := os.environ.get("REFIT_ALL_PICTURES"):
                page.screenshot(path=Path(folder, f"{name}-{width}-{scheme}.png"), full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, seen
            assert not ours or page.evaluate(_FAINT) == [], seen
    page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    page.emulate_media(color_scheme="light")
