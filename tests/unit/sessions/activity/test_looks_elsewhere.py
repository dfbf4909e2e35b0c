"""Looks at sessions on other machines: so many at the same time that a plan of thousands takes no minutes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions.activity import probes
from flows.sessions.activity.evidence import Look
from flows.sessions.activity.probes import Watch, elsewhere_at_once
from flows.sessions.engine import Engine
from tests.support.activity.looks import NOW
from tests.support.pods import SESSION


@pytest.mark.parametrize(
    ("sessions", "looks"), [(0, 48), (1, 48), (768, 48), (1_000, 62), (3_072, 192), (5_000, 192), (1_000_000, 192)]
)
def test_more_sessions_are_looked_at_at_the_same_time_within_bounds(sessions: int, looks: int) -> None:
    assert elsewhere_at_once(sessions) == looks


@pytest.mark.parametrize(("here", "looks"), [(True, probes.QUESTIONS), (False, 62)])
def test_only_sessions_elsewhere_are_looked_at_in_such_numbers(
    here: bool, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    class Engine:
        on_this_machine = here

    monkeypatch.setattr(probes, "Watch", lambda *_: type("Watch", (), {"look": None}))
    monkeypatch.setattr(probes, "at_once", lambda _function, _items, limit: limits.append(limit))
    probes.look_at(None, Engine(), iter(range(1_000)))  # type: ignore[arg-type] # nothing of them is used
    assert limits == [looks]


def test_a_look_says_whether_it_failed(tmp_path: Path) -> None:
    watch = Watch(Settings(home=tmp_path / "refit"), cast("Engine", None))

    def fails() -> Look:
        raise RefitError("The API server is away.")

    assert watch.look_by(SESSION, fails).failed
    assert not watch.look_by(SESSION, lambda: Look(NOW)).failed
