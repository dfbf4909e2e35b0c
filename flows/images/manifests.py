"""Manifests and descriptors of images (OCI), byte by byte: plain data. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


INDEX = "application/vnd.oci.image.index.v1+json"


CONFIG = "application/vnd.oci.image.config.v1+json"


DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
EMPTY_KIND, EMPTY = "application/vnd.oci.empty.v1+json", b"{}"  # the configuration of what is no image


@dataclass(frozen=True)
class Manifest:
    """A manifest, byte by byte as the registry holds it."""

    digest: str
    media_type: str
    content: bytes

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """The manifest as data."""
        return dict(json.loads(self.content))

    @property
    def size(self) -> int:
        """Bytes (compressed) that somebody downloads who has nothing of this image yet."""
        return sum(int(part["size"]) for part in self.parts)

    @property
    def parts(self) -> tuple[Mapping[str, Any], ...]:
        """Descriptors of what the image is made of: its configuration, then its layers from the lowest up."""
        return tuple(part for part in (self.document.get("config"), *self.document.get("layers", ())) if part)

    @property
    def part_digests(self) -> tuple[str, ...]:
        """The digests of its parts."""
        return tuple(str(part["digest"]) for part in self.parts)


def digest_of(content: bytes) -> str:
    """`sha256:…` of these bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(media_type: str, content: bytes, **more: object) -> dict[str, object]:
    """How a manifest names some content: media type, digest, size (bytes)."""
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content), **more}


def canonical(document: object) -> bytes:
    """JSON that is the same for the same data."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def is_manifest(document: object) -> bool:
    """Whether these are data of an image's manifest, or of an index of manifests."""
    if not isinstance(document, dict):
        return False
    if "manifests" in document:  # what is both is an image for one program, and an index for another
        return "layers" not in document and _are_descriptors(document["manifests"])
    return is_descriptor(document.get("config")) and _are_descriptors(document.get("layers"))


def _are_descriptors(parts: object) -> bool:
    return isinstance(parts, list) and all(map(is_descriptor, parts))


def is_descriptor(part: object) -> bool:
    """Whether these are data of a descriptor: media type, digest, size, and annotations if it has any."""
    return (
        isinstance(part, dict)
        and isinstance(part.get("digest"), str)
        and DIGEST.fullmatch(part["digest"]) is not None
        and type(part.get("size")) is int
        and part["size"] >= 0
        and isinstance(part.get("mediaType"), str)
        and isinstance(part.get("annotations", {}), dict)
    )
