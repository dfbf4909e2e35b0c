"""A Hub with the page of sessions, somebody whose session runs, and somebody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.images.build import Built
from tests.support.hub import RELEASE, Hub, Person, running_hub
from tests.support.machine import FIRST, RegistryServer
from tests.support.variants import LIGHT

# Nobody is in these groups but the people of the test of limits.
LIMITS = {"groups": {"two": {"sessions": 2}, "little": {"memory_gb": 0.001}, "roomy": {"home_gb": 0.25}}}


@pytest.fixture(scope="package")
def hub(registry_server: RegistryServer, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("mine") / "home"
    with running_hub(registry_server, base, folder, person_limits=LIMITS) as hub:
        yield hub


@pytest.fixture(scope="package")
def ada(hub: Hub) -> Person:
    """Somebody whose session runs."""
    ada = hub.person("ada")
    hub.sessions.create("ada", FIRST, RELEASE, hub.image, LIGHT, owner="ada")
    return ada


@pytest.fixture(scope="package")
def eve(hub: Hub) -> Person:
    """Somebody else, whose session runs."""
    eve = hub.person("eve")
    hub.sessions.create("eve", FIRST, RELEASE, hub.image, LIGHT, owner="eve")
    return eve
