"""The registry is killed or restarts in the middle of a push."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pytest

from flows.images.manifests import digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from tests.support import tiny
from tests.support.building import BIG, TRIES, big, build, graph_of, programs, pushed
from tests.support.leftovers import assert_clean
from tests.support.machine import RegistryServer, private_home, serve_registry
from tests.support.waiting import free_port, wait_until


@dataclass
class Unsteady:
    """A registry that can be killed and started again on what it has stored."""

    folder: Path
    port: int = field(default_factory=free_port)
    running: ExitStack = field(default_factory=ExitStack)

    def start(self) -> RegistryServer:
        return self.running.enter_context(serve_registry(self.folder, self.port))

    def kill(self) -> None:
        self.running.close()

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.fixture
def unsteady(tmp_path: Path) -> Iterator[Unsteady]:
    server = Unsteady(tmp_path / "registry")
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("down", [0.0, pytest.param(15.0, marks=pytest.mark.long)])
def test_the_registry_is_killed_in_mid_push(unsteady: Unsteady, tmp_path: Path, down: float) -> None:
    storage = unsteady.folder / "images"
    with private_home(tmp_path / "home", unsteady.port) as settings, ThreadPoolExecutor() as pool:
        build(settings, graph_of(tiny.root()))

        def is_pushed() -> bool:
            return bool(programs(settings, "push")) and pushed(storage, settings) > BIG // 10

        for _ in range(TRIES):
            graph = graph_of(tiny.root(), big())
            first = pool.submit(build, settings, graph)
            wait_until(lambda first=first: is_pushed() or first.done())
            if not first.done():
                break
        else:
            pytest.fail("all pushes were over between two looks")
        unsteady.kill()
        time.sleep(down)
        unsteady.start()
        assert first.exception() is None or isinstance(first.exception(), RegistryError)
        again = build(settings, graph)["big"]
        registry = Registry(settings)
        assert not registry.missing(registry.stages, registry.manifest(registry.stages, again.key))
        assert_clean(settings)


class Content(BytesIO):
    """A file in the middle of which something happens, once."""

    def __init__(self, content: bytes, happens: Callable[[], None]) -> None:
        super().__init__(content)
        self._happens, self._middle = [happens], len(content) // 2

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > self._middle and self._happens:
            self._happens.pop()()
        return super().read(size)


@pytest.mark.long
def test_the_registry_restarts_while_a_blob_is_uploaded(unsteady: Unsteady, tmp_path: Path) -> None:
    with private_home(tmp_path / "home", unsteady.port) as settings:
        registry, content = Registry(settings), secrets.token_bytes(BIG)
        registry.put_file(registry.stages, digest_of(content), Content(content, unsteady.restart))
        assert registry.blob(registry.stages, digest_of(content), len(content)) == content


@pytest.mark.long
def test_the_registry_dies_while_a_blob_is_uploaded(unsteady: Unsteady, tmp_path: Path) -> None:
    with private_home(tmp_path / "home", unsteady.port) as settings:
        registry, content = Registry(settings), secrets.token_bytes(BIG)
        with pytest.raises(RegistryError, match="doesn't answer"):
            registry.put_file(registry.stages, digest_of(content), Content(content, unsteady.kill))
        unsteady.start()
        assert not registry.has_blob(registry.stages, digest_of(content))
        registry.put_file(registry.stages, digest_of(content), BytesIO(content))
        assert registry.blob(registry.stages, digest_of(content), len(content)) == content
