"""Images to which something is attached: nobody starts them."""

from __future__ import annotations

from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor
from flows.images.registry import Registry

STEM = "runtime-minimal-deb12-py311_2026a"
OLD, NEW = f"{STEM}_20261120", f"{STEM}_20261121"


def image(registry: Registry, tag: str, *layers: bytes) -> Manifest:
    """An image of these layers: nobody starts it."""
    config = canonical({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}})
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    parts = [descriptor(kind, layer) for layer in layers]
    for blob in (config, *layers):
        registry.put_blob(registry.repository, blob)
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, config), "layers": parts}
    registry.put_manifest(registry.repository, tag, canonical(document), MANIFEST)
    return registry.manifest(registry.repository, tag)
