"""The client, buildah, skopeo and Podman against a real registry that wants TLS and a password."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import SHUT_RDWR, create_connection, socket
from socketserver import BaseRequestHandler, ThreadingTCPServer
from tempfile import TemporaryFile
from threading import Thread

import pytest
from pydantic import SecretStr

from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.host import containers
from flows.images.build import Builder
from flows.images.registry import Registry
from flows.images.registry_errors import BlobLost, RegistryError
from flows.images.stages import Kind, Stage
from tests.support.certificates import Authority, make_authority
from tests.support.live_folders import contents, paths_below
from tests.support.machine import RegistryServer, private_home, serve_registry
from tests.support.waiting import free_port

USER, PASSWORD = "builder", secrets.token_hex(16)
BOTTOM = Stage("bottom", Kind.instructions, None, "COPY files/hello /hello", {"files/hello": b"hello"})
TOP = Stage("top", Kind.instructions, "bottom", "COPY files/more /more", {"files/more": b"more"})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def locked(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings with a registry of this module's, and all that it wants."""
    folder = tmp_path_factory.mktemp("locked")
    bcrypt = ["perl", "-e", "print crypt($ARGV[0], $ARGV[1])", PASSWORD, f"$2b$04${secrets.token_hex(11)}"]
    word = command.run(bcrypt).stdout
    (folder / "users").write_text(f"{USER}:{word}\n")
    port = free_port()
    tls = {"certificate": str(authority.certificate), "key": str(authority.key)}
    auth = {"htpasswd": {"realm": "tests", "path": str(folder / "users")}}
    more = {
        "ca_bundle": authority.bundle,
        "registry_tls": True,
        "registry_user": USER,
        "registry_password": SecretStr(PASSWORD),
    }
    with (
        serve_registry(folder / "registry", port, http={"tls": tls}, auth=auth),
        private_home(folder / "home", port, **more) as settings,
    ):
        yield settings


def but(settings: Settings, **changes: object) -> Registry:
    """A client with other settings."""
    return Registry(settings.model_copy(update=changes))


def test_stages_are_pushed_pulled_and_run(locked: Settings, registry_port: int, tmp_path: Path) -> None:
    registry = Registry(locked)
    builder = Builder(locked, registry)
    bottom = builder.build(BOTTOM, None)
    with private_home(tmp_path / "home", registry_port, **chosen(locked)) as elsewhere:
        # Storage in which nothing is yet: the parent comes by skopeo.
        top = Builder(elsewhere, Registry(elsewhere)).build(TOP, bottom)
        image = f"docker://{locked.registry_host}/{locked.repository}/stages@{top.digest}"
        assert containers.pull(elsewhere, image) == image.removeprefix("docker://")
        logs = contents(path for path in paths_below(elsewhere.home) if path.suffix == ".log")
        assert logs and not any(PASSWORD.encode() in log for log in logs.values())
    manifest = registry.manifest(registry.stages, top.digest)
    assert set(registry.tags(registry.stages)) >= {bottom.key, top.key}
    assert registry.missing(registry.stages, manifest) == ()
    for layer in manifest.document["layers"]:
        registry.mount(locked.repository, layer["digest"], registry.stages, layer["size"])
        assert registry.has_blob(locked.repository, layer["digest"])
    registry.try_storing()


@pytest.fixture
def registry_port(locked: Settings) -> int:
    return locked.registry_port


def chosen(settings: Settings) -> dict[str, object]:
    """How another machine reaches the same registry."""
    return {
        name: getattr(settings, name) for name in ("ca_bundle", "registry_tls", "registry_user", "registry_password")
    }


@pytest.mark.parametrize("wrong", [{"registry_password": SecretStr("no")}, {"registry_user": ""}])
def test_a_wrong_password_or_none(locked: Settings, wrong: dict[str, object]) -> None:
    with pytest.raises(RegistryError, match="refuses") as caught:
        but(locked, **wrong).find(locked.repository, "latest")
    assert "registry_password" in caught.value.hint
    image = f"docker://{locked.registry_host}/{locked.repository}/stages:none"
    with pytest.raises(ProgramFailed, match=r"unauthorized|authentication required"):
        containers.pull(locked.model_copy(update=wrong), image)


def test_an_authority_that_nobody_told_of(locked: Settings, tmp_path: Path) -> None:
    other = make_authority(tmp_path / "other")
    for bundle in (None, other.bundle):
        with pytest.raises(RegistryError, match="no secure connection") as caught:
            but(locked, ca_bundle=bundle).ping()
        assert "ca_bundle" in caught.value.hint


def test_plain_http_to_a_registry_with_tls_and_the_other_way_round(locked: Settings, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="doesn't answer as an image registry") as caught:
        but(locked, registry_tls=False).ping()
    assert "registry_tls" in caught.value.hint
    with serve_registry(tmp_path / "plain") as plain, pytest.raises(RegistryError, match="no secure") as caught:
        but(locked, registry_port=plain.port).ping()
    assert "registry_tls" in caught.value.hint


def test_what_the_registry_has_lost(locked: Settings) -> None:
    registry = Registry(locked)
    stage = Stage("lossy", Kind.instructions, None, "COPY files/x /x", {"files/x": secrets.token_bytes(100)})
    built = Builder(locked, registry).build(stage, None)
    manifest = registry.manifest(registry.stages, built.digest)
    [layer] = [str(part["digest"]) for part in manifest.document["layers"]]
    assert registry._send("DELETE", f"{registry.stages}/blobs/{layer}").status == 202
    assert registry.missing(registry.stages, manifest) == (layer,)
    with pytest.raises(BlobLost):
        registry.blob(registry.stages, layer, 1000)


def test_a_connection_that_breaks_in_the_middle(registry_server: RegistryServer, settings: Settings) -> None:
    content = secrets.token_bytes(20_000_000)
    with unsteady_wire(registry_server.port, after=8_000_000, breaks=2) as wire:
        registry = Registry(settings.model_copy(update={"registry_port": wire.server_address[1]}))
        digest = registry.put_blob("large", content)
        wire.breaks = 2
        with TemporaryFile() as copy:
            registry.get_file("large", digest, copy, len(content))
            assert copy.read() == content
        assert wire.breaks == 0


class _Wire(ThreadingTCPServer):
    daemon_threads = True
    breaks = 0


@contextmanager
def unsteady_wire(port: int, after: int, breaks: int) -> Iterator[_Wire]:
    """A way to a port of this machine that breaks so often, each time after so many bytes in one direction."""

    def carry(source: socket, target: socket) -> None:
        carried = 0
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                carried += len(chunk)
                if carried > after and wire.breaks:
                    wire.breaks -= 1
                    break
                target.sendall(chunk)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(SHUT_RDWR)

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with create_connection(("127.0.0.1", port)) as there:
                back = Thread(target=carry, args=(there, self.request))
                back.start()
                carry(self.request, there)
                back.join()

    with _Wire(("127.0.0.1", 0), Handler) as wire:
        wire.breaks = breaks
        Thread(target=wire.serve_forever, args=(0.01,), daemon=True).start()
        yield wire
        wire.shutdown()
