"""Attachments in a registry that lies: the bounds and the login hold where a package composes the requests."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine

from flows.core import database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.artifacts import Artifacts
from flows.images.manifests import Manifest, canonical
from flows.images.registry import Registry
from flows.images.registry_errors import BlobLost, NoAnswer, RegistryError
from flows.publishing import evidence
from tests.support.attached import OLD, image
from tests.support.liars import PASSWORD, USER, WORD, Eavesdropper, Liar, Lie, Request, Said
from tests.support.machine import serve_registry

CONTENT = secrets.token_bytes(1 << 20)


@dataclass
class Scene:
    """An image with evidence in a registry, and a liar before it that asks for a login."""

    liar: Liar
    registry: Registry
    subject: Manifest
    engine: Engine

    def read(self) -> bytes:
        return evidence.read(self.registry, self.subject.digest, "note.txt")

    def attach(self) -> None:
        evidence.attach(self.registry, self.subject, {"more.txt": secrets.token_bytes(1 << 20)}, self.engine)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    login = {"registry_user": USER, "registry_password": SecretStr(PASSWORD), "registry_wait_seconds": 3.0}
    engine = database.open_database(f"sqlite:///{tmp_path}/refit.db")
    with serve_registry(tmp_path / "registry") as server, Liar(server.port).serve() as liar:
        settings = Settings(home=tmp_path / "home", registry_port=liar.port).model_copy(update=login)
        with Registry(settings) as registry:
            subject = image(registry, OLD, b"layer")
            evidence.attach(registry, subject, {"note.txt": CONTENT}, engine)
            yield Scene(liar, registry, subject, engine)
    engine.dispose()


def blobs(request: Request) -> bool:
    return request.command == "GET" and "/blobs/" in request.path


def attached(request: Request) -> bool:
    """Whether the manifest of an artifact is asked for."""
    return request.command == "GET" and "/manifests/sha256:" in request.path


def lying(asked: Callable[[Request], bool], change: Callable[[bytes], bytes]) -> Lie:
    return lambda request, said: said.but(body=change(said.body), docker_content_digest="") if asked(request) else said


def without_end(request: Request, said: Said) -> Said | None:
    if not blobs(request):
        return said
    request.answer(Said(200, {"transfer-encoding": "chunked"}))
    request.drip(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
    return None


def silent(request: Request, said: Said) -> Said | None:
    if not blobs(request):
        return said
    request.be_silent()
    return None


def gone(request: Request, said: Said) -> Said:
    return Said(404, {"content-length": "0"}) if "/blobs/" in request.path else said


LIES: dict[str, tuple[Lie, type[RefitError], str]] = {
    "flipped file": (lying(blobs, lambda body: bytes([body[0] ^ 1]) + body[1:]), RegistryError, "has the digest"),
    "longer file": (lying(blobs, lambda body: body + b"x"), RegistryError, "longer than 1048576 bytes"),
    "file without an end": (without_end, RegistryError, "longer than"),
    "silence": (silent, NoAnswer, "took longer than"),
    "no file": (gone, BlobLost, "has lost"),
    "another manifest": (
        lying(attached, lambda body: canonical({**json.loads(body), "annotations": {}})),
        RegistryError,
        "has the digest",
    ),
    "4 MiB of manifest and more": (lying(attached, lambda body: body + b" " * (4 << 20)), RegistryError, "longer than"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_an_error(scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scene.read() == CONTENT
    scene.liar.lie, kind, words = LIES[name]
    if kind is NoAnswer:
        monkeypatch.setattr(scene.registry, "_seconds", 2.0)
        monkeypatch.setattr(scene.registry, "_rate", 1e6)
    with pytest.raises(kind, match=words) as caught:
        scene.read()
    assert PASSWORD not in str(caught.value) and WORD not in str(caught.value)


@pytest.mark.parametrize("path", ["/v2/images/blobs/uploads/1", "/v2/images/blobs/uploads/1?_state=x"])
def test_an_upload_that_is_sent_to_another_address(scene: Scene, path: str) -> None:
    with Eavesdropper(lambda _: Said(201, {"content-length": "0"})).serve() as elsewhere:

        def lie(request: Request, said: Said) -> Said:
            return said.but(location=elsewhere.url + path) if request.command == "POST" else said

        scene.liar.lie = lie
        with pytest.raises(RegistryError, match="sends an upload to another address"):
            scene.attach()
    assert not elsewhere.told


def test_an_upload_that_broke_off_begins_anew(scene: Scene) -> None:
    broken = list[str]()

    def lie(request: Request, said: Said) -> Said | None:
        if request.command != "PUT" or "/blobs/" not in request.path or broken:
            return said
        broken.append(request.path)
        request.close_connection = True
        return None

    scene.liar.lie = lie
    scene.attach()
    assert broken
    assert {file.name for file in evidence.listed(scene.registry, scene.subject.digest)} == {"more.txt", "note.txt"}


def test_logins_of_other_programs_are_not_read(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text(
        json.dumps({"credHelpers": {scene.registry.host: "evil"}, "auths": 7})
    )
    for name, value in {"HOME": str(tmp_path), "ORAS_USER": "eve", "ORAS_PASS": "eve"}.items():
        monkeypatch.setenv(name, value)
    scene.attach()
    assert scene.read() == CONTENT
    assert capfd.readouterr() == ("", "")


def test_nothing_goes_around_our_connection(scene: Scene) -> None:
    with pytest.raises(Exception, match="No connection adapters"):
        Artifacts(scene.registry, "text/vnd.note").session.get(f"http://{scene.registry.host}/v2/")
