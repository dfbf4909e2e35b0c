"""Homes of sessions without a container, in folders and in the pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.model import Session
from tests.support.homes import session_in
from tests.support.waiting import some_long


@pytest.fixture(params=some_long(["folders", "pool"], "folders"))
def homes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalHomes]:
    settings = Settings(home=tmp_path / "refit")
    if request.param == "pool":
        Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    yield homes
    if request.param == "pool":
        command.run(["umount", homes.pool.folder], root=True)


@pytest.fixture
def session(homes: LocalHomes) -> Session:
    return session_in(homes)
