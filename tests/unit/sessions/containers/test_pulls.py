"""The layers of an image that have to be pulled, by the layers that are here."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from flows.cli import session_tables
from flows.migrations.planning.rollout import Action, Decision
from flows.sessions.containers.pulls import missing


@pytest.mark.parametrize(
    ("here", "left"),
    [((), 1110), (("base",), 110), (("base", "app"), 100), (("base", "app", "lib", "another"), 0)],
)
def test_only_layers_that_arent_here_are_pulled_and_each_once(here: tuple[str, ...], left: int) -> None:
    assert missing([1000, 100, 10, 100], ["base", "lib", "app", "lib"], here) == left


def test_the_plan_says_how_much_that_is() -> None:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    lines = [
        Decision(name, Action.migrate, "old", "new", at=at, pull=pull) for name, pull in (("a", 41_300_000), ("b", 0))
    ]
    text = io.StringIO()
    Console(file=text, width=200).print(session_tables.migration(lines))
    assert "to pull" in text.getvalue() and text.getvalue().count("MB") == 1 and "41.3 MB" in text.getvalue()
