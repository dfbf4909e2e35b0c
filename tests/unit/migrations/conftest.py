"""Sessions to be moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.sessions.model import Session
from tests.support.simulated.fleet import Fleet, fleet


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    return sessions.add(1, sessions.image("old"))


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[Fleet]:
    """Two sessions of one wave, and the image that both are to get."""
    with fleet(tmp_path / "home", waves=[100]) as sessions, sessions.in_charge():
        old = sessions.image("old")
        sessions.add(1, old)
        sessions.add(2, old)
        sessions.image("new")
        yield sessions
