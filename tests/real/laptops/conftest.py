"""One machine for all tests of laptops: a forwarder, a jump host, and a session each of Ada and of Bob."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows import services
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.sessions.lifecycle import Sessions
from tests.support.laptops import Laptop
from tests.support.machine import RegistryServer, private_home
from tests.support.office import Office, ready
from tests.support.variants import LIGHT, light
from tests.support.waiting import free_port, free_span

SERVICES = ("forwarder", "jump")


@pytest.fixture(scope="package")
def office(
    registry_server: RegistryServer,
    registry: Registry,
    shared: Settings,
    base: Built,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    chosen = {"ssh_ports": free_span(), "jump_port": free_port(), "hub": True, "gateway": True}
    chosen |= {"stop_grace_seconds": 3.0, "gateway_port": free_port(), "gateway_api_port": free_port()}
    with private_home(folder / "home", registry_server.port, **chosen) as settings:
        sessions = Sessions.open(settings)
        old, new = (light(shared, registry, base, f"laptops {name}") for name in ("old", "new"))
        office = Office(settings, sessions, (old, new), folder / "laptops")
        try:
            for owner in ("ada", "bob"):
                sessions.create(owner, "light-minimal-deb12-py311", "2026a", old, LIGHT, owner=owner)
            office.say()
            services.up(settings, only=SERVICES)
            yield office
        finally:
            services.down(settings)
            for owner in ("ada", "bob"):
                sessions.remove(owner, purge=True)


@pytest.fixture
def ada(office: Office) -> Laptop:
    """Ada's laptop, from which she gets into her session."""
    office.say()
    return ready(office, "ada")
