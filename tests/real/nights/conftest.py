"""A catalog with its index, its Prefect server and its first night, for all tests of nights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from flows import services
from flows.images.build import Builder, Built
from flows.images.builder import locking_image
from flows.images.stages import Stage
from tests.support.machine import ROOT, RegistryServer, private_home
from tests.support.nights import AUTOMATION, Scene, serve, write_catalog
from tests.support.package_index import make_wheel, serve_index
from tests.support.prefect_api import ask
from tests.support.receiver import receiver
from tests.support.waiting import free_port


@pytest.fixture(scope="package")
def scene(
    tmp_path_factory: pytest.TempPathFactory,
    registry_server: RegistryServer,
    builder: Builder,
    base: Built,
    base_stage: Stage,
) -> Iterator[Scene]:
    builder.build(locking_image.stage(base_stage, "py311", ROOT), base)  # the index below has no pipenv
    folder, index = tmp_path_factory.mktemp("nightly"), tmp_path_factory.mktemp("packages")
    make_wheel(index / "ant", "ant", "1.0")
    make_wheel(index / "bee", "bee", "1.0", ["ant<2"])
    make_wheel(index / "cow", "cow", "1.0", ["ant"])
    make_wheel(index / "elk", "elk", "1.0")
    write_catalog(folder / "catalog")
    with (
        serve_index(index) as url,
        receiver() as (address, told),
        private_home(
            folder / "home",
            registry_server.port,
            registry=f"127.0.0.1:{registry_server.port}",
            prefect_port=free_port(),
            catalog=folder / "catalog",
            pip_index_url=SecretStr(url),
            notify=(SecretStr(address),),
        ) as settings,
    ):
        services.up(settings)
        try:
            yield Scene(settings, index, told)
        finally:
            services.down(settings)


@pytest.fixture(scope="package")
def prefect(scene: Scene) -> Iterator[httpx.Client]:
    """The server, where a migration is planned whenever there is a new image."""
    serve(scene)
    with scene.api() as client:
        answer = client.get("/deployments/name/migrate-sessions/refit").raise_for_status().json()["id"]
        action = {"type": "run-deployment", "source": "selected", "deployment_id": answer}
        action["parameters"] = {"dry_run": True}
        ask(client, "POST", "/automations/", {**AUTOMATION, "actions": [action]})
        yield client


@pytest.fixture(scope="package")
def first(scene: Scene, prefect: httpx.Client) -> Any:
    """The report of the first night."""
    return scene.night()


@pytest.fixture(scope="package")
def settled(scene: Scene, first: Any) -> Any:
    """The report of the next night: packages that were new in a lock had not been looked at before it was made."""
    return scene.night()
