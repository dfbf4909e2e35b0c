"""What is attached to an image in the registry: its locks and the list of its packages.

An attachment is a manifest whose `subject` is the image. Registries that don't list such referrers by themselves get
the index that the OCI distribution spec wants clients to keep: the tag `sha256-<hex of the subject>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from flows.database import lease
from flows.images.registry import INDEX, MANIFEST, Manifest, Registry, RegistryError, canonical, descriptor
from flows.images.stages import Stage

KIND = "application/vnd.refit.evidence.v1"
PACKAGES = "packages.json"
MOST_NAMED = 8
_EMPTY_KIND, _EMPTY = "application/vnd.oci.empty.v1+json", b"{}"
_TITLE = "org.opencontainers.image.title"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)")


@dataclass(frozen=True)
class Changes:
    """What differs between the packages of two images: name → version, or the old and the new version."""

    added: Mapping[str, str]
    removed: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        words = (
            *(f"+{_bare(name)} {version}" for name, version in self.added.items()),
            *(f"-{_bare(name)}" for name in self.removed),
            *(f"{_bare(name)} {old} → {new}" for name, (old, new) in self.changed.items()),
        )
        more = len(words) - MOST_NAMED
        return ", ".join(words[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def of_stages(stages: Iterable[Stage]) -> dict[str, bytes]:
    """The evidence that follows from an image's stages: file name → content."""
    stages = tuple(stages)
    return {
        PACKAGES: canonical(packages_of(stages)),
        **{f"{s.name}.system.txt": "".join(f"{p}\n" for p in s.system).encode() for s in stages if s.system},
        **{f"{s.name}.requirements.txt": "\n".join((*s.requirements, "")).encode() for s in stages if s.requirements},
    }


def packages_of(stages: Iterable[Stage]) -> dict[str, str]:
    """All packages of an image: `deb/tzdata` or `pypi/tzdata` → version, because both worlds use the same names."""
    found: dict[str, str] = {}
    for stage in stages:
        for package in stage.system:
            name, _, version = package.partition("=")
            found[f"deb/{name}"] = version
        for line in stage.requirements:
            if match := _REQUIREMENT.match(line):
                found[f"pypi/{_normal(match[1])}"] = match[2]
    return found


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    """What `new` has otherwise than `old`."""
    return Changes(
        added={name: new[name] for name in sorted(new.keys() - old.keys())},
        removed={name: old[name] for name in sorted(old.keys() - new.keys())},
        changed={name: (old[name], new[name]) for name in sorted(old.keys() & new.keys()) if old[name] != new[name]},
    )


def attach(registry: Registry, subject: Manifest, files: Mapping[str, bytes], database: Engine) -> str:
    """Attach files to an image; the same files a second time change nothing. Returns the attachment's digest."""
    repository = registry.repository
    registry.put_blob(repository, _EMPTY)
    for content in files.values():
        registry.put_blob(repository, content)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": KIND,
        "config": descriptor(_EMPTY_KIND, _EMPTY),
        "layers": [
            descriptor("application/octet-stream", content, annotations={_TITLE: name})
            for name, content in sorted(files.items())
        ],
        "subject": descriptor(subject.media_type, subject.content),
    }
    content = canonical(document)
    entry = descriptor(MANIFEST, content, artifactType=KIND)
    registry.put_manifest(repository, str(entry["digest"]), content, MANIFEST)
    if registry.referrers(repository, subject.digest) is None:
        _list(registry, subject.digest, entry, database)
    return str(entry["digest"])


def packages(registry: Registry, digest: str) -> dict[str, str]:
    """The packages of the image with this digest (see `packages_of`); empty if nothing is known of it."""
    for entry in reversed(_attachments(registry, digest)):
        manifest = registry.manifest(registry.repository, str(entry["digest"]))
        for layer in manifest.document["layers"]:
            if layer.get("annotations", {}).get(_TITLE) == PACKAGES:
                return dict(json.loads(registry.blob(registry.repository, layer["digest"])))
    return {}


def _attachments(registry: Registry, digest: str) -> list[dict[str, Any]]:
    entries = registry.referrers(registry.repository, digest)
    if entries is None:
        entries = _listed(registry, digest)
    return [entry for entry in entries if entry.get("artifactType") == KIND]


def _list(registry: Registry, digest: str, entry: Mapping[str, Any], database: Engine) -> None:
    """Add an attachment to the index of an image's attachments; the last is the newest."""
    repository, tag = registry.repository, _index_tag(digest)
    # Reading and writing again is two steps, and registries can't compare and swap.
    with lease(database, f"tag/{registry.host}/{repository}:{tag}"):
        entries = [*(e for e in _listed(registry, digest) if e["digest"] != entry["digest"]), entry]
        index = canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
        written = registry.put_manifest(repository, tag, index, INDEX)
        if registry.digest(repository, tag) != written:
            raise RegistryError(
                f"The registry {registry.host} did not keep {repository}:{tag}.",
                why="Something else than Refit writes this tag too.",
                fix="run it again.",
            )


def _listed(registry: Registry, digest: str) -> list[dict[str, Any]]:
    index = registry.find(registry.repository, _index_tag(digest))
    return list(index.document.get("manifests", ())) if index else []


def _bare(name: str) -> str:
    return name.partition("/")[2]


def _index_tag(digest: str) -> str:
    return digest.replace(":", "-")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
