"""A session in which somebody tries something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.core.settings import Settings
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from tests.support.variants import JUPYTER

PROFILE = ("jupyter-minimal-deb12-py311", "2026a")


@pytest.fixture(scope="package")
def sessions(shared: Settings) -> Sessions:
    return Sessions.open(shared)


@pytest.fixture(scope="package")
def ana(sessions: Sessions, jupyter_image: str) -> Iterator[Session]:
    yield sessions.create("wall-ana", *PROFILE, jupyter_image, JUPYTER)
    sessions.remove("wall-ana", purge=True)
