"""The manifests in a registry, with what decides whether a prune leaves them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import Engine

from flows.core.threads import at_once, each
from flows.images.grafting.layer_cache import layer_parent
from flows.images.ledger import Ledger
from flows.images.manifests import Manifest
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.images.stages import Kind
from flows.publishing.prune import ATTACHED, Stored


def observe(
    registry: Registry, database: Engine, storage: Path | None
) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
    """Images and stages as the registry has them.

    Args:
        registry: which is asked.
        database: tells how stages hang together.
        storage: the registry's folder, where it is on this machine; only there are manifests without a tag found.
    """
    built = {entry.digest: (name, entry, at) for name, entry, at in Ledger(database).all()}
    stages = registry.stages
    found_stages = []
    for manifest, tags, pushed in _manifests(registry, stages, storage):
        name, entry, at = built.get(manifest.digest, ("", None, pushed))
        parent = entry.inputs.get("parent", {}).get("digest", "") if entry else layer_parent(manifest)
        if at is None and parent in built:
            at = built[parent][2]
        layers = _layers(manifest)
        wheels = entry is not None and entry.inputs.get("instructions", {}).get("kind") == Kind.wheels
        subject = str(manifest.document.get("subject", {}).get("digest", ""))
        stage = Stored(stages, manifest.digest, tags, layers, at, subject, name=name, parent=parent, wheels=wheels)
        found_stages.append(stage)
    return observe_images(registry, storage), tuple(found_stages)


def observe_images(registry: Registry, storage: Path | None) -> tuple[Stored, ...]:
    """Everything in the repository of images; arguments as of `observe`."""
    return tuple(_image(registry, *seen) for seen in _manifests(registry, registry.repository, storage))


def _manifests(
    registry: Registry, repository: str, storage: Path | None
) -> Iterator[tuple[Manifest, tuple[str, ...], datetime | None]]:
    """Every manifest that can be found, with its tags, and when it was pushed."""
    pushed = _pushed(storage, repository) if storage else {}
    tags: dict[str, list[str]] = {digest: [] for digest in pushed}
    for name, digest in each(partial(registry.digest, repository), registry.tags(repository)).items():
        if digest:
            tags.setdefault(digest, []).append(name)
    find = partial(registry.find, repository)
    manifests = {m.digest: m for m in at_once(find, tags) if m}
    listed = (entry["digest"] for m in manifests.values() for entry in m.document.get("manifests", ()))
    attached = {digest for digest in listed if digest not in manifests}
    manifests |= {m.digest: m for m in at_once(find, attached) if m}
    for digest, manifest in sorted(manifests.items()):
        yield manifest, tuple(sorted(tags.get(digest, ()))), pushed.get(digest)


def _pushed(storage: Path, repository: str) -> dict[str, datetime]:
    """Digest → when it was pushed, for all manifests of a registry on this machine: no registry lists those."""
    revisions = storage / "docker" / "registry" / "v2" / "repositories" / repository / "_manifests" / "revisions"
    return {
        f"sha256:{link.parent.name}": datetime.fromtimestamp(link.stat().st_mtime, UTC)
        for link in revisions.glob("sha256/*/link")
    }


def _image(registry: Registry, manifest: Manifest, tags: tuple[str, ...], pushed: datetime | None) -> Stored:
    index = next((tag for tag in tags if ATTACHED.fullmatch(tag)), "")
    subject = index.replace("-", ":") or str(manifest.document.get("subject", {}).get("digest", ""))
    content = "" if subject or "layers" not in manifest.document else _content(registry, manifest)
    layers = _layers(manifest)
    return Stored(registry.repository, manifest.digest, tags, layers, pushed, subject=subject, content=content)


def _content(registry: Registry, manifest: Manifest) -> str:
    try:
        config = registry.config(registry.repository, manifest)
    except RegistryError:  # an image that the registry has lost a part of
        return ""
    return str(((config.get("config") or {}).get("Labels") or {}).get("io.refit.content", ""))


def _layers(manifest: Manifest) -> dict[str, int]:
    return {layer["digest"]: int(layer["size"]) for layer in manifest.document.get("layers", ())}
