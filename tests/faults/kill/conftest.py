"""Sessions whose moves are killed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from tests.support.killing import Scene, furnished
from tests.support.machine import RegistryServer
from tests.support.variants import LATE, LIGHT, late, light


@pytest.fixture(scope="package")
def scene(
    registry: Registry,
    base: Built,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    image = partial(light, shared, registry, base)
    with furnished(tmp_path_factory.mktemp("faults"), registry_server.port, image, LIGHT) as scene:
        yield scene


@pytest.fixture(scope="package")
def later(
    registry: Registry,
    base: Built,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """The scene with homes that come into containers that run already."""
    folder, image = tmp_path_factory.mktemp("later"), partial(late, shared, registry, base)
    with furnished(folder, registry_server.port, image, LATE, warm_memory=0.0) as scene:
        yield scene
