"""Manifests as a current release of Kubernetes reads them: its API server drops a field silently that it doesn't know.

`lightkube.models` is made from the OpenAPI documents that the release publishes whose number its distribution has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

_GROUPS = {"v1": "core_v1", "networking.k8s.io/v1": "networking_v1", "policy/v1": "policy_v1"}


def lost(manifest: Mapping[str, Any]) -> list[str]:
    """The fields of a manifest that such a server would drop, each with its path.

    Raises:
        msgspec.ValidationError: it would refuse one, or lacks one.
    """
    version, kind = manifest["apiVersion"], manifest["kind"]
    module = _GROUPS.get(version) or version.replace(".k8s.io/", "_")
    model = getattr(import_module(f"lightkube.models.{module}"), kind)
    return [*_differences(manifest, model.from_dict(manifest).to_dict(), kind)]


def _differences(told: Any, kept: Any, at: str) -> Iterator[str]:
    if isinstance(told, Mapping) and isinstance(kept, Mapping):
        for key, value in told.items():
            yield from _differences(value, kept.get(key), f"{at}.{key}")
    elif isinstance(told, list) and isinstance(kept, list) and len(told) == len(kept):
        for number, value in enumerate(told):
            yield from _differences(value, kept[number], f"{at}[{number}]")
    elif told != kept:
        yield at
