"""Builds of a Containerfile by buildah alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images import containerfile_export
from flows.images.grafting.configuration import TIMESTAMP
from flows.images.grafting.layers import Trees, compare
from flows.images.registry import Registry
from tests.support.machine import private_home

Build = Callable[..., str]
AUTHORITIES = ("SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS")


@pytest.fixture
def build(tmp_path: Path, shared: Settings, registry: Registry) -> Build:
    """Builds a text in an empty folder, maybe with a package index; pushes what came out and returns its digest."""

    def build(text: str, index: str = "") -> str:
        with private_home(tmp_path / "alone", shared.registry_port) as alone:
            empty, company, written = (alone.folder(name) for name in ("empty", "company", "written"))
            exports = [f"export UV_DEFAULT_INDEX={index} PIP_EXTRA_INDEX_URL={index}\n"] if index else []
            if shared.ca_bundle:
                (company / "ca.pem").write_bytes(shared.ca_bundle.read_bytes())
                exports += [f"export {name}={containerfile_export.COMPANY}/ca.pem\n" for name in AUTHORITIES]
            if exports:
                (company / "env.sh").write_text("".join(exports))
            (written / "Containerfile").write_text(text)
            options = [
                *("--isolation", tools.isolation(shared), "--tls-verify=false", "--timestamp", str(TIMESTAMP)),
                *("--volume", f"{company}:{containerfile_export.COMPANY}:ro", "--tag", "plain"),
                *("--file", str(written / "Containerfile")),
            ]
            command.run([*tools.buildah(alone), "build", *options, str(empty)], root=True)
            target = f"docker://{registry.host}/{registry.stages}:plain"
            argv = ["push", "--tls-verify=false", "--format", "oci", "plain", target]
            command.run([*tools.buildah(alone), *argv], root=True)
        return registry.manifest(registry.stages, "plain").digest

    return build


def differing(settings: Settings, registry: Registry, one: str, other: str) -> set[str]:
    """The differences between two images, beside their history."""
    images = (registry.manifest(registry.stages, digest) for digest in (one, other))
    result = compare(Trees(settings, registry), registry.stages, *images)
    return {f"{one.sort} {one.name}" for one in result} - {f"history {number:03}" for number in range(100)}
