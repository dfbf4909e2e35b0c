"""Images of people's own profiles: tags and evidence lie in a repository of each person's own."""

from __future__ import annotations

from flows.images.manifests import Manifest
from flows.images.registry import Registry


def carry(registry: Registry, own: Registry, digest: str) -> Manifest:
    """Put an image of a person's repository into that of all, by its digest alone: sessions are made from there.

    No tag there names it; a registry that collects what no tag names would leave it to the next publication.

    Args:
        registry: with the repository of all images.
        own: with the person's.
        digest: of the image.

    Raises:
        RefitError: the registry doesn't do its part.
    """
    image = own.manifest(own.repository, digest)
    for part in (*image.document["layers"], image.document["config"]):
        registry.mount(registry.repository, part["digest"], own.repository, int(part["size"]))
    registry.keep_manifest(registry.repository, image)
    return image
