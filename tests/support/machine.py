"""Fixtures with real programs: each process of a test run has its own registry and storage, all have one real image."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import FileLock
from securesystemslib.signer import CryptoSigner

from flows import services
from flows.catalog import load
from flows.catalog.model import Base, Catalog
from flows.core.atomic_files import write_whole
from flows.core.outside import NOBODY
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.policy import RolloutPolicy
from flows.gateway import routes
from flows.gateway.proxy import Gateway
from flows.host import mounts, tools
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Stage
from flows.locks import system
from flows.sessions.containers.networks import SessionNetworks
from tests.support import first_starts
from tests.support.used_homes import UsedHome
from tests.support.variants import variant
from tests.support.waiting import free_port, wait_until

ROOT = Path(__file__).parents[2]
FIRST = "jupyter-minimal-deb12-py311"
# None until this process has wanted the first image.
_USED: list[UsedHome] = []


@dataclass(frozen=True)
class RegistryServer:
    """A docker-registry of one's own on a free port."""

    port: int
    storage: Path


@contextmanager
def serve_registry(folder: Path, port: int | None = None, **more: Mapping[str, object]) -> Iterator[RegistryServer]:
    """Run a registry that keeps its images below `folder`; `more` goes into its configuration."""
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(folder / "images")}, "delete": {"enabled": True}}
    http = {"addr": f"127.0.0.1:{port}", **more.pop("http", {})}
    config.write_text(yaml.safe_dump({"version": 0.1, "storage": storage, "http": http, **more}))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", config], stdout=log, stderr=log)
        try:
            wait_until(lambda: _answers(port))
            yield RegistryServer(port, folder / "images")
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        # One that speaks https answers 400.
        return httpx.get(f"http://127.0.0.1:{port}/v2/", timeout=1, verify=NOBODY).status_code in (200, 400, 401)
    except httpx.TransportError:
        return False


@contextmanager
def private_home(folder: Path, registry_port: int, **more: object) -> Iterator[Settings]:
    """Settings with a home of their own; in the end its sessions are ended and its storage is removed.

    It is the home of a machine that was used before (tests/support/used_homes.py, tests/support/first_starts.py); with
    `used=False` it is empty.
    """
    used = more.pop("used", True)
    bundle = os.environ.get("SSL_CERT_FILE")
    chosen = {
        "ca_bundle": Path(bundle) if bundle else None,
        "registry_port": registry_port,
        "gateway": False,
        # Tests that are about people say so. Programs don't find the hosts of people below localhost.
        "hub": False,
        "subdomain_host": "none",
        # Most tests of moves want to see what happens when an image fails after the stop.
        "migration": RolloutPolicy(rehearse=False),
        **more,
    }
    settings = Settings(home=folder, **chosen)  # type: ignore[arg-type]
    if is_ours(settings):
        sign_as_all_tests(settings)
        if used and first_starts.in_a_run():
            _give_first_starts(settings, more)
        if used and _USED:
            _USED[0].give(settings)
    try:
        yield settings
    finally:
        _remove(settings)


@contextmanager
def home_with_gateway(folder: Path, registry_port: int) -> Iterator[Settings]:
    """Such a home, with the gateway and its waiting_page running in front of its sessions."""
    ports = {"gateway_port": free_port(), "gateway_api_port": free_port()}
    with private_home(folder, registry_port, gateway=True, **ports) as settings:
        try:
            services.up(settings, only=("gateway", "waiting-page"))
            # Until then the waiting page may take away the route of a session that has no record.
            wait_until(lambda: routes.COMPLETE in (Gateway(settings).table() or ()))
            yield settings
        finally:
            services.down(settings)


def _give_first_starts(settings: Settings, more: Mapping[str, object]) -> None:
    """Let services start as they do where they were started before."""
    if settings.gateway:
        first_starts.give_gateway(settings)
    if "prefect_port" in more:
        first_starts.give_prefect_database(settings)


def is_ours(settings: Settings) -> bool:
    """Whether the home of these settings is for us to fill; another user's is for them."""
    above = settings.home.parent
    return not above.exists() or above.stat().st_uid == os.geteuid()


def sign_as_all_tests(settings: Settings) -> None:
    """Give a home the key of all tests: artifacts of one of them count for the others."""
    private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"the key of all tests").digest())
    write_whole(settings.folder("keys") / "signing.pem", CryptoSigner(private).private_bytes, private=True)


def _remove(settings: Settings) -> None:
    if (settings.home / "containers" / "libpod").exists():
        everything = ["rm", "--all", "--force", "--time", "0"]
        command.run([*tools.podman(settings), *everything], root=True, accepted=range(256))
        SessionNetworks(settings).remove()
    below = (settings.home, tools.runtime_folder(settings))
    for point in reversed([point for folder in below for point in mounts.mounts_below(folder)]):
        command.run(["umount", "--lazy", point], root=True, accepted=range(256))
    command.run(["rm", "-rf", "--one-file-system", *below], root=True, accepted=range(256))


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """The registry of this process of the test run; the stages of the catalog's first image are in it."""
    with another_registry(tmp_path_factory) as server:
        yield server


@contextmanager
def another_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A registry in which the stages of the catalog's first image are, and nothing else."""
    folder = tmp_path_factory.mktemp("registry")
    shutil.copytree(_first_image(tmp_path_factory.getbasetemp()), folder / "images")
    with serve_registry(folder) as server:
        yield server


def _first_image(temporary: Path) -> Path:
    """The registry's folder with the stages of FIRST: made once for all processes, by the one that wants it first.

    A person who tests again and again names a folder in REFIT_TEST_IMAGES, which keeps stages that have not changed.
    """
    run = temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary
    images, making = run / "first-image", Path(os.environ.get("REFIT_TEST_IMAGES") or run / "making")
    making.mkdir(parents=True, exist_ok=True)
    _USED[:] = [UsedHome(run / "used-home")]
    with FileLock(making / "lock"):
        if not images.exists():
            with serve_registry(making) as server, private_home(making / "home", server.port, used=False) as settings:
                built = build_all(Builder(settings, Registry(settings)), _chain(load.load_catalog(ROOT), settings))
                _USED[0].make(settings, built[-1].digest)
            shutil.copytree(making / "images", run / "copying")
            (run / "copying").rename(images)
    return images


def _chain(catalog: Catalog, settings: Settings) -> tuple[Stage, ...]:
    assembler = Assembler(catalog, partial(system.resolve, settings=settings))
    return assembler.chain(load.profile(catalog, "2026a", FIRST))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, registry_server: RegistryServer) -> Iterator[Settings]:
    """The settings of this process: a private home and its registry."""
    with private_home(tmp_path_factory.mktemp("shared") / "home", registry_server.port) as settings:
        yield settings


@pytest.fixture(scope="session")
def registry(shared: Settings) -> Registry:
    """A client of that registry."""
    return Registry(shared)


@pytest.fixture(scope="session")
def builder(shared: Settings, registry: Registry) -> Builder:
    """Builds into that storage and registry."""
    return Builder(shared, registry)


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The catalog of this repository."""
    return load.load_catalog(ROOT)


@pytest.fixture(scope="session")
def assembler(catalog: Catalog, shared: Settings) -> Assembler:
    """Assembles its stages, with exact system packages."""
    return Assembler(catalog, partial(system.resolve, settings=shared))


@pytest.fixture(scope="session")
def base_recipe(catalog: Catalog) -> Base:
    """The base that all real tests stand on."""
    return catalog.bases["deb12"]


@pytest.fixture(scope="session")
def base_stage(base_recipe: Base, assembler: Assembler) -> Stage:
    """Its stage, with exact packages."""
    return assembler.foundation(base_recipe, "py311")


@pytest.fixture(scope="session")
def base(builder: Builder, base_stage: Stage) -> Built:
    """That base, in the registry."""
    return builder.build(base_stage, None)


@pytest.fixture(scope="session")
def jupyter_chain(catalog: Catalog, assembler: Assembler) -> tuple[Stage, ...]:
    """The stages of the catalog's first image, base first."""
    return assembler.chain(load.profile(catalog, "2026a", FIRST))


def build_all(builder: Builder, chain: Iterable[Stage]) -> list[Built]:
    """Each stage on the one before."""
    built: list[Built] = []
    for stage in chain:
        built.append(builder.build(stage, built[-1] if built else None))
    return built


@pytest.fixture(scope="session")
def jupyter_image(builder: Builder, jupyter_chain: tuple[Stage, ...], registry: Registry, shared: Settings) -> str:
    """Digest of the real image of that profile; no tag points at it."""
    top = build_all(builder, jupyter_chain)[-1]
    return variant(shared, registry, top.digest, f"{shared.repository}/stages", "of these tests")
