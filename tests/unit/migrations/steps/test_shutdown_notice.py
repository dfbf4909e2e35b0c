"""Notices to people whose session is stopped: each box says the same as the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from flows.core.errors import RefitError
from flows.migrations.move import Move
from flows.migrations.steps.shutdown_notice import GOES_BACK_NOW, MOVES_NOW, warn
from flows.sessions.ide import terminal_messages
from flows.sessions.ide.jupyter import Jupyter
from flows.sessions.ide.page_notices import Pages, Windows
from flows.sessions.lifecycle import Sessions
from flows.waiting_page.status import COMES_BACK


def move(back: str) -> Move:
    return cast(Move, SimpleNamespace(before=SimpleNamespace(name="ada"), back_to=back, relocates=False))


@pytest.mark.parametrize("back", ["", "snapshot"])
@pytest.mark.parametrize(("pages", "by_itself"), [(Jupyter, True), (Windows, False)])
def test_the_box_before_a_stop_says_the_same_as_the_page_that_waits(
    monkeypatch: pytest.MonkeyPatch, pages: type[Pages], by_itself: bool, back: str
) -> None:
    boxes: list[str] = []
    written: list[str] = []
    monkeypatch.setattr(terminal_messages, "write_to_all", lambda engine, session, text: written.append(text))
    page = SimpleNamespace(comes_back=pages.comes_back, leave_notice=lambda id, title, text: boxes.append(text))
    sessions = SimpleNamespace(engine=None, pages=lambda session: page)
    warn(cast(Sessions, sessions), move(back))
    notice = GOES_BACK_NOW if back else MOVES_NOW
    assert boxes == [f"{notice} {pages.comes_back}"] and written[0].startswith(notice)
    assert ("by itself" in boxes[0]) is by_itself and "by itself" in COMES_BACK
    assert "open it again" not in boxes[0] and "new image" not in boxes[0], "it may be the older one, and it comes back"


def test_nobody_who_can_t_be_told_keeps_a_session_from_being_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    def fails(*words: object) -> None:
        asked.append(words)
        raise RefitError("The session doesn't answer.")

    monkeypatch.setattr(terminal_messages, "write_to_all", fails)
    warn(cast(Sessions, SimpleNamespace(engine=None, pages=fails)), move(""))
    assert len(asked) == 2, "terminals and pages"
