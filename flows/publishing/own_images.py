"""Images of people's own profiles: tags and evidence lie in a repository of each person's own."""

from __future__ import annotations

from collections.abc import Iterable

from flows.core.formatting import gigabytes
from flows.core.settings.personal_builds import PersonalBuilds
from flows.images.manifests import Manifest
from flows.images.registry import Registry
from flows.publishing.own_profiles import RoomUsed
from flows.publishing.prune import Stored


def check_size(images: Iterable[Stored], owner: str, limits: PersonalBuilds) -> None:
    """Return if a person may have another image; a layer of several images counts once. Pure.

    Args:
        images: everything in their repository.
        owner: the person.
        limits: theirs.

    Raises:
        RoomUsed: their images have as many bytes as they may.
    """
    layers = {digest: size for image in images for digest, size in image.layers.items()}
    if (size := sum(layers.values())) >= limits.images_gb * 1e9:
        raise RoomUsed(
            f"The images of {owner} have {gigabytes(size)}, and may have {gigabytes(limits.images_gb * 1e9)}.",
            hint="`refit profile rm NAME` gives a profile up, and the operator's next prune removes its images.",
        )


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
