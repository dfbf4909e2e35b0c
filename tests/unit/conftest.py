"""Fixtures that several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.lazily import lazily

with lazily(globals()):
    from sqlalchemy import Engine

    from flows.core.database import open_database
    from flows.core.settings import Settings
    from tests.support.simulated.fleet import Fleet, fleet


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Fleet]:
    """Simulated sessions under the real executor, journal and database."""
    with fleet(tmp_path / "home") as simulated:
        yield simulated


@pytest.fixture
def database(settings: Settings) -> Engine:
    return open_database(settings.database)
