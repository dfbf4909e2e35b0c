"""Homes with snapshots, in a pool and in folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.lifecycle import Sessions
from tests.support.homes_alone import opened


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    settings = Settings(home=tmp_path / "refit")
    yield settings
    command.run(["umount", Pool(settings).folder], root=True, accepted=(0, 1, 32))


@pytest.fixture(params=["pool", "folder"])
def sessions(settings: Settings, request: pytest.FixtureRequest) -> Sessions:
    if request.param == "pool":
        Pool(settings).create(LEAST)
    return opened(settings)
