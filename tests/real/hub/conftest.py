"""A Hub, and somebody whose session runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.images.build import Built
from tests.support.hub import Hub, Person, running_hub
from tests.support.machine import RegistryServer


@pytest.fixture(scope="package")
def hub(registry_server: RegistryServer, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running_hub(registry_server, base, tmp_path_factory.mktemp("hub") / "home") as hub:
        yield hub


@pytest.fixture(scope="package")
def ada(hub: Hub) -> Person:
    """Somebody whose session runs."""
    ada = hub.person("ada")
    ada.start()
    assert ada.reaches("/user/ada/api") == "ada"
    return ada
