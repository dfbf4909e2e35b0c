"""A registry that says it has stored what it hasn't, or gives something else."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from pydantic import SecretStr

from flows.core.settings import Settings
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.images.stages import Kind, Stage
from tests.support.liars import PASSWORD, USER, Liar, Lie, Request, Said, honest, nothing
from tests.support.lies import IMAGE, IMAGES, Scene, build, of, where
from tests.support.machine import RegistryServer, private_home


def test_201_for_a_manifest_that_is_not_kept(scene: Scene) -> None:
    content = canonical({**json.loads(IMAGE), "annotations": {"io.refit.test": secrets.token_hex()}})
    manifest = Manifest(digest_of(content), MANIFEST, content)
    scene.liar.swallows = of("manifests", "PUT")
    with pytest.raises(RegistryError, match="did not keep"):
        scene.registry.keep_manifest(IMAGES, manifest)
    scene.liar.swallows = nothing
    scene.registry.keep_manifest(IMAGES, manifest)


def test_201_for_a_blob_that_is_not_kept(scene: Scene) -> None:
    config = canonical({"config": {}, "author": secrets.token_hex()})
    content = canonical({**json.loads(IMAGE), "config": descriptor(CONFIG, config)})
    manifest = Manifest(digest_of(content), MANIFEST, content)
    scene.liar.swallows = of("uploads", "PUT")
    scene.registry.put_blob(IMAGES, config)
    # A registry that looks for what a manifest names refuses it; one that doesn't is found out.
    with pytest.raises(RegistryError, match="did not keep"):
        scene.registry.keep_manifest(IMAGES, manifest)
    scene.liar.swallows = of("manifests", "PUT")
    with pytest.raises(RegistryError, match="did not keep"):
        scene.registry.keep_manifest(IMAGES, manifest)


def test_201_for_a_blob_and_nobody_looks(scene: Scene) -> None:
    """A registry that takes a manifest though it lacks what that names."""
    config = canonical({"config": {}, "author": secrets.token_hex()})
    content = canonical({**json.loads(IMAGE), "config": descriptor(CONFIG, config)})
    manifest = Manifest(digest_of(content), MANIFEST, content)

    def pretending(request: Request, said: Said) -> Said:
        is_it = request.path.endswith(manifest.digest) and request.command in ("GET", "PUT")
        status = 201 if request.command == "PUT" else 200
        return Said(status, {"content-length": str(len(content))}, content) if is_it else said

    scene.liar.swallows = of("uploads", "PUT")
    scene.registry.put_blob(IMAGES, config)
    scene.hear(pretending)
    with pytest.raises(RegistryError, match=f"did not keep {digest_of(config)}"):
        scene.registry.keep_manifest(IMAGES, manifest)


STAGE = Stage("lied-about", Kind.instructions, None, "COPY files/hello /hello", {"files/hello": b"hello"})
ABOVE = Stage("above", Kind.instructions, "lied-about", "COPY files/more /more", {"files/more": b"more"})


def swapping(key: str) -> Lie:
    """The manifest under a tag is another one, that says the same of itself."""

    def lie(request: Request, said: Said) -> Said:
        body = said.body + b" "
        return said.but(body=body, docker_content_digest=digest_of(body))

    return where(lambda request: request.command == "GET" and request.path.endswith(f"/manifests/{key}"), lie)


def test_manifest_under_a_tag_replaced_by_another(workshop: tuple[Liar, Settings]) -> None:
    liar, settings = workshop
    liar.lie = honest
    built, registry = build(settings, STAGE), Registry(settings)
    manifest = registry.manifest(registry.stages, built.digest)
    registry.put_manifest(registry.stages, built.key, manifest.content + b" ", MANIFEST)
    assert registry.digest(registry.stages, built.key) != built.digest
    again = build(settings, STAGE)
    assert again.reused and again.digest == built.digest
    assert registry.digest(registry.stages, built.key) == built.digest
    liar.lie = swapping(built.key)
    assert build(settings, STAGE).digest == built.digest


@pytest.mark.parametrize("program", ["buildah", "skopeo"])
def test_a_program_whose_registry_is_busy_is_run_again(
    workshop: tuple[Liar, Settings], truthful: RegistryServer, program: str, tmp_path: Path
) -> None:
    liar, settings = workshop
    refused = list[str]()

    def busy(request: Request, said: Said) -> Said:
        ours = request.headers.get("User-Agent", "").startswith("python-httpx")
        if ours or "/manifests/" not in request.path or refused:
            return said
        refused.append(request.command)
        return Said(500, {"content-length": "0"})

    liar.lie = honest
    below = build(settings, STAGE)
    if program == "buildah":
        liar.lie = busy
        stage = Stage("pushed", Kind.instructions, None, "COPY files/x /x", {"files/x": secrets.token_bytes(9)})
        assert not build(settings, stage).reused
        assert refused
        return
    login = {"registry_user": USER, "registry_password": SecretStr(PASSWORD)}
    with private_home(tmp_path / "home", liar.port, used=False, **login) as elsewhere:
        liar.lie = busy
        assert not build(elsewhere, ABOVE, below).reused
    assert refused == ["GET"]
