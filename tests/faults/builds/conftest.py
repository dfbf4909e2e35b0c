"""A machine that builds, and parts of its registry where nothing is yet."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.settings import Settings
from tests.support.building import elsewhere
from tests.support.machine import RegistryServer, private_home
from tests.support.prefect_api import temporary_server


@pytest.fixture(scope="package")
def mine(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with private_home(tmp_path_factory.mktemp("builds") / "home", registry_server.port) as settings:
        yield settings


@pytest.fixture
def fresh(mine: Settings) -> Settings:
    """The same machine with a part of the registry where nothing is yet, and a database that knows nothing."""
    return elsewhere(mine, secrets.token_hex(4))


@pytest.fixture
def pair(registry_server: RegistryServer, tmp_path: Path) -> Iterator[tuple[Settings, Settings]]:
    """Two builders with a storage of their own each, who share registry and database."""
    shared = {"repository": secrets.token_hex(4), "database_url": f"sqlite:///{tmp_path}/shared.db"}
    with (
        private_home(tmp_path / "one", registry_server.port, **shared) as one,
        private_home(tmp_path / "two", registry_server.port, **shared) as two,
    ):
        yield one, two


@pytest.fixture(scope="package")
def prefect() -> Iterator[None]:
    with temporary_server():
        yield
