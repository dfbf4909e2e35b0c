"""A registry behind a proxy that changes what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from flows.core.settings import Settings
from flows.images.manifests import MANIFEST
from flows.images.registry import Registry
from tests.support.liars import PASSWORD, USER, Liar
from tests.support.lies import CONFIGURATION, IMAGE, IMAGES, LAYER, Scene, client
from tests.support.machine import RegistryServer, private_home, serve_registry


@pytest.fixture(scope="package")
def truthful(tmp_path_factory: pytest.TempPathFactory, module_settings: Settings) -> Iterator[RegistryServer]:
    """A registry with an image in it."""
    with serve_registry(tmp_path_factory.mktemp("truthful")) as server:
        registry = Registry(module_settings.model_copy(update={"registry_port": server.port}))
        registry.put_blob(IMAGES, LAYER)
        registry.put_blob(IMAGES, CONFIGURATION)
        registry.put_manifest(IMAGES, "tag", IMAGE, MANIFEST)
        yield server


@pytest.fixture(scope="package")
def module_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("liars"))


@pytest.fixture
def scene(truthful: RegistryServer, settings: Settings) -> Iterator[Scene]:
    with Liar(truthful.port).serve() as liar:
        yield Scene(liar, client(settings, liar.port))


@pytest.fixture(scope="package")
def workshop(truthful: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Liar, Settings]]:
    """A home that builds, and the liar between it and its registry."""
    login = {"registry_user": USER, "registry_password": SecretStr(PASSWORD)}
    folder = tmp_path_factory.mktemp("workshop") / "home"
    with Liar(truthful.port).serve() as liar, private_home(folder, liar.port, used=False, **login) as settings:
        yield liar, settings
