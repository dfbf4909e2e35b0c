"""Caches of downloads, in real builds: used by the next build, and without a trace in any layer."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from io import BytesIO

import pytest

from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.builder import cache
from flows.images.manifests import digest_of
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage

TEXT = """\
RUN . /mnt/env.sh; set -eu; umask 022; export SOURCE_DATE_EPOCH=315532800 DEBIAN_FRONTEND=noninteractive; \\
    apt-get update -q; apt-get install -q -y --no-install-recommends tree; \\
    find /var/log /var/lib/apt/lists /var/cache/apt /var/cache/ldconfig -type f -delete; \\
    rm -f /var/cache/debconf/*-old /var/lib/dpkg/*-old
RUN . /mnt/env.sh; set -eu; umask 022; export SOURCE_DATE_EPOCH=315532800; \\
    export PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl); \\
    python3 -m pip install --no-compile --no-deps --no-input --disable-pip-version-check \\
        --root-user-action ignore --target /opt/by-pip packaging==24.2; \\
    /mnt/uv pip install --no-config --no-deps --link-mode copy --compile-bytecode --target /opt/by-uv packaging==24.2
"""


@pytest.fixture
def stage(base: Built) -> Stage:
    return Stage("cached", Kind.instructions, base.stage, TEXT)


def build(stage: Stage, base: Built, settings: Settings, name: str, limit: float) -> Built:
    """Build it where no registry has it yet; only the base is there."""
    own = settings.model_copy(update={"repository": name, "cache_gb": limit})
    there, here = Registry(settings), Registry(own)
    manifest = there.manifest(there.stages, base.digest)
    for part in (manifest.document["config"], *manifest.document["layers"]):
        here.mount(here.stages, part["digest"], there.stages, part["size"])
    here.put_manifest(here.stages, base.digest, manifest.content, manifest.media_type)
    return Builder(own, here).build(stage, base)


def files(built: Built, settings: Settings, name: str) -> dict[str, str]:
    """The content of the stage's own layer: path → owner, mode and content."""
    registry = Registry(settings.model_copy(update={"repository": name}))
    layer = registry.manifest(registry.stages, built.digest).document["layers"][-1]
    with tarfile.open(fileobj=BytesIO(registry.blob(registry.stages, layer["digest"], layer["size"]))) as tar:
        contents = {m.name: digest_of(file.read()) for m in tar if m.isreg() and (file := tar.extractfile(m))}
        return {m.name: f"{m.uid}:{m.gid} {m.mode:o} {m.mtime} {contents.get(m.name)}" for m in tar.getmembers()}


@pytest.fixture
def empty(shared: Settings) -> Iterator[None]:
    cache.prune(shared, everything=True)
    yield
    cache.prune(shared, everything=True)


@pytest.mark.long
def test_the_same_digest_without_a_cache_and_with_a_cold_and_a_warm_one(
    stage: Stage, base: Built, shared: Settings, empty: None
) -> None:
    without = build(stage, base, shared, "without", 0)
    assert not any(one.size for one in cache.caches(shared))
    cold = build(stage, base, shared, "cold", 1)
    filled = {one.name for one in cache.caches(shared) if one.size}
    # pip caches what the index allows it to.
    assert filled - {"pip"} == {"apt", "uv"}
    warm = build(stage, base, shared, "warm", 1)
    assert not (without.reused or cold.reused or warm.reused)
    assert files(without, shared, "without") == files(cold, shared, "cold") == files(warm, shared, "warm")
    assert without.digest == cold.digest == warm.digest
    assert warm.log is not None
    assert "Need to get 0 B/" in warm.log.read_text()
