"""Images in a real registry that are nothing but their configuration: nobody ever runs them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from flows.core.settings import Settings
from flows.images.manifests import Manifest, canonical, digest_of
from flows.images.registry import Registry
from tests.support import variants
from tests.support.waiting import free_port, wait_until


@contextmanager
def plain_registry(folder: Path) -> Iterator[int]:
    """A registry without anything in it, below this folder; its port."""
    port, config = free_port(), folder / "registry.yml"
    told = {"version": 0.1, "log": {"level": "error"}, "http": {"addr": f"127.0.0.1:{port}"}}
    config.write_text(yaml.safe_dump({**told, "storage": {"filesystem": {"rootdirectory": str(folder / "images")}}}))
    process = subprocess.Popen(
        ["docker-registry", "serve", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: _answers(port))
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/", timeout=1).is_success
    except httpx.TransportError:
        return False


_DOCKER = "application/vnd.docker"
_LAYER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03c`\x18\x05\xa3`\x14\x0cw\x00\x00.\xaf\xb5\xef\x00\x04\x00\x00"


def push(settings: Settings, word: str, labels: Mapping[str, str]) -> str:
    """Push an image with these labels, another one for each word, that counts as published; returns its digest."""
    registry = Registry(settings)
    inner = {"Labels": {**labels, "word": word}, "Cmd": ["/bin/true"]}
    told = {"architecture": "amd64", "os": "linux", "config": inner}
    config = json.dumps({**told, "rootfs": {"type": "layers", "diff_ids": [digest_of(bytes(1024))]}}).encode()
    parts = {f"{_DOCKER}.container.image.v1+json": config, f"{_DOCKER}.image.rootfs.diff.tar.gzip": _LAYER}
    described = [{"mediaType": kind, "size": len(part), "digest": digest_of(part)} for kind, part in parts.items()]
    for part in parts.values():
        registry.put_blob(settings.repository, part)
    kind = f"{_DOCKER}.distribution.manifest.v2+json"
    content = canonical({"schemaVersion": 2, "mediaType": kind, "config": described[0], "layers": described[1:]})
    image = Manifest(digest_of(content), kind, content)
    registry.put_manifest(settings.repository, image.digest, image.content, image.media_type)
    variants.sign(settings, registry, image, labels)
    return image.digest
