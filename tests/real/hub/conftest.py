"""A Hub, and somebody whose session runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows import services
from flows.images.build import Built
from flows.images.registry import Registry
from tests.support.hub import RELEASE, SERVICES, Hub, Person, made
from tests.support.machine import FIRST, ROOT, RegistryServer, private_home
from tests.support.waiting import free_port


@pytest.fixture(scope="package")
def hub(registry_server: RegistryServer, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub") / "home"
    ports = {"gateway_port": free_port(), "gateway_api_port": free_port(), "hub_port": free_port()}
    with private_home(folder, registry_server.port, gateway=True, hub=True, catalog=ROOT, **ports) as settings:
        image = made(settings, base, "of people")
        for tag in (f"{FIRST}_{RELEASE}", f"{FIRST}_{RELEASE}_20261121"):
            registry = Registry(settings)
            manifest = registry.manifest(settings.repository, image)
            registry.put_manifest(settings.repository, tag, manifest.content, manifest.media_type)
        try:
            services.up(settings, only=SERVICES)
            yield Hub(settings, image)
        finally:
            services.down(settings)


@pytest.fixture(scope="package")
def ada(hub: Hub) -> Person:
    """Somebody whose session runs."""
    ada = hub.person("ada")
    ada.start()
    assert ada.reaches("/user/ada/api") == "ada"
    return ada
