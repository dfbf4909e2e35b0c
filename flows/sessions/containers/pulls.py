"""Images that have to be pulled before sessions can move to them: the layers that Podman doesn't have yet."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.registry import Registry
from flows.images.registry_errors import NoAnswer

_GONE = 125  # of the images that were listed, one was removed meanwhile


def to_pull(settings: Settings, images: Iterable[str]) -> dict[str, int]:
    """Digest → bytes (compressed) of its layers that this machine lacks; layers that two images share count for each.

    Images of which the registry says nothing just now are left out.

    Raises:
        RefitError: Podman or the registry can't say.
    """
    registry, here, pulls = Registry(settings), _layers_here(settings), dict[str, int]()
    for image in images:
        with suppress(NoAnswer):
            manifest = registry.manifest(settings.repository, image)
            sizes = [int(layer["size"]) for layer in manifest.document.get("layers", ())]
            layers = registry.config(settings.repository, manifest)["rootfs"]["diff_ids"]
            pulls[image] = missing(sizes, layers, here)
    return pulls


def missing(sizes: Sequence[int], layers: Sequence[str], here: Collection[str]) -> int:
    """Bytes of the layers that aren't here; one that an image has twice comes once. Pure.

    Args:
        sizes: bytes of each layer, from the lowest up.
        layers: digest of each layer as it is unpacked: the same layer may be compressed in many ways.
        here: those that are on the machine.
    """
    return sum(size for layer, size in dict(zip(layers, sizes, strict=True)).items() if layer not in here)


def _layers_here(settings: Settings) -> frozenset[str]:
    """Digests of the unpacked layers of all images in Podman's storage."""
    if not tools.containers(settings).is_dir():
        return frozenset()
    podman = tools.podman(settings)
    if not (ids := command.run([*podman, "images", "--quiet", "--no-trunc"], root=True).stdout.split()):
        return frozenset()
    shape = "{{json .RootFS.Layers}}"
    output = command.run([*podman, "image", "inspect", "--format", shape, *ids], root=True, accepted=(0, _GONE)).stdout
    return frozenset(layer for line in output.splitlines() if line for layer in json.loads(line) or ())
