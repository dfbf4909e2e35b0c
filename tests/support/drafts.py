"""A notebook and a text file that somebody has typed into on a page of JupyterLab, without saving them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from flows.sessions.ide.jupyter import Jupyter

TYPED = "typed = 'and not saved'"


def type_drafts(page: Page, jupyter: Jupyter, url: str, stem: str) -> dict[str, Locator]:
    """Open both by this stem and type into them; gives for each of them where its text is on the page."""
    notebook, text = f"{stem}.ipynb", f"{stem}.txt"
    jupyter.write_notebook(notebook, ["answer = 6 * 7"])
    jupyter.write_file(text, "answer = 42")
    page.goto(f"{url}/lab/tree/{notebook}?reset")
    page.locator(".jp-Dialog button.jp-mod-accept").click()  # it asks which kernel to start
    page.locator(".jp-DirListing-item", has_text=text).dblclick()
    drafts = {text: page.locator(".jp-FileEditor .cm-content"), notebook: page.locator(".jp-Cell .cm-content").first}
    for name, lines in drafts.items():
        look_at(page, name, lines)
        expect(lines).to_contain_text("answer")
        page.keyboard.press("Control+End")
        page.keyboard.type(f"\n{TYPED}")
    expect(unsaved(page)).to_have_count(len(drafts))
    return drafts


def check_drafts(page: Page, drafts: Mapping[str, Locator], home: Path) -> None:
    """The typed text is on the page, is known as unsaved, and can be saved: JupyterLab objects to nothing."""
    expect(unsaved(page)).to_have_count(len(drafts))
    for name, lines in drafts.items():
        assert TYPED not in (home / name).read_text()
        look_at(page, name, lines)
        expect(lines).to_contain_text(TYPED)
        page.keyboard.press("Control+s")
        expect(unsaved(page).filter(has_text=name)).to_have_count(0)
        assert TYPED in (home / name).read_text()
    expect(page.locator(".jp-Dialog")).to_have_count(0)


def look_at(page: Page, name: str, lines: Locator) -> None:
    """Bring a document to the front and the cursor into it."""
    page.locator("#jp-main-dock-panel").get_by_role("tab", name=name).click()
    lines.click()


def unsaved(page: Page) -> Locator:
    """The tabs of documents that JupyterLab calls unsaved."""
    return page.locator(".lm-TabBar-tab.jp-mod-dirty")
