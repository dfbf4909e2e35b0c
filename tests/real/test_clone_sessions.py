"""A session that begins as a copy of another one that runs, with real containers, in a pool."""

from __future__ import annotations

from functools import partial

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.snapshots.clone_session import Wish, clone
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.model import Running
from tests.support.killing import NAME, furnished
from tests.support.machine import RegistryServer
from tests.support.moving import manifest
from tests.support.variants import LATE, late


def test_a_clone_of_a_running_session_runs_beside_it_and_each_goes_alone(
    registry: Registry,
    base: Built,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("clone")
    pool = Pool(Settings(home=folder / "home"))
    pool.create(LEAST)
    try:
        with furnished(folder, registry_server.port, partial(late, shared, registry, base), LATE) as scene:
            sessions, ada = scene.sessions, scene.sessions.store.session(NAME)
            before = manifest(ada.home)
            made = clone(scene.settings, NAME, Wish("ada2"), "ada")
            try:
                assert [name for name, *_ in manifest(made.home).items()] == [*before]
                assert made.uid != ada.uid and sessions.token(made) != sessions.token(ada)
                assert sessions.running(ada) is sessions.running(made) is Running.running
                sessions.execute("ada2", ["sh", "-c", "echo mine >project/work.py"])
                assert manifest(ada.home) == before
                assert not list((scene.settings.home / "pool" / "snapshots" / NAME).iterdir())
            finally:
                sessions.remove("ada2", purge=True)
            assert manifest(folder_of(ada.home)) == before and not folder_of(made.home).exists()
            sessions.wait_ready(ada)
    finally:
        command.run(["umount", pool.folder], root=True, accepted=(0, 1, 32))
