"""The two thresholds of idleness stand where people look for them, and say what the settings say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from flows.core.settings import Settings
from flows.migrations.notifications.notice import Notice
from tests.support.machine import ROOT

MINUTES = Settings.model_fields["idle_minutes"].default
HOURS = Settings.model_fields["idle_state_hours"].default


@pytest.mark.parametrize("page", ["README.md", "docs/sessions.md"])
def test_the_thresholds_stand_on_a_page_with_their_settings(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    for setting, value in (("idle_minutes", MINUTES), ("idle_state_hours", HOURS)):
        near = rf"\b{value:g}\b.{{0,40}}`{setting}`|`{setting}`.{{0,10}}\b{value:g}\b"
        assert re.search(near, text), f"{page} doesn't say that {setting} is {value:g}"


def test_the_thresholds_stand_in_a_notice() -> None:
    text = Notice("ada", "sha256:f9", "", (), 60, MINUTES, HOURS, "at night", None).text
    assert f"nobody has typed for {MINUTES:g} min" in text and f"is kept for {HOURS:g} h" in text
    assert "~/.config/refit/hold" in text, "who sits in the container can answer there"


def test_a_notice_names_the_commands_that_the_session_has_and_no_others() -> None:
    old = Notice("ada", "sha256:f9", "", (), 60, MINUTES, HOURS, "at night", None, page="http://hub/ada")
    with_page, without = replace(old, command=True).text, replace(old, command=True, page="").text
    assert "refit " not in old.text
    assert re.findall("`(refit [^`]*)`", with_page) == ["refit session snooze 3h", "refit session hold 2h"]
    assert re.findall("`(refit [^`]*)`", without) == ["refit session hold 2h"]
