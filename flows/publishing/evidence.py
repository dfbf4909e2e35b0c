"""The attachments of an image in the registry: its locks, its packages, its provenance, the results of its checks.

An attachment is a manifest whose `subject` is the image. Registries that don't list such referrers by themselves get
the index that the OCI distribution spec wants clients to keep: the tag `sha256-<hex of the subject>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sqlalchemy import Engine

from flows.catalog import npm
from flows.core.errors import UnknownName
from flows.core.lazily import lazily
from flows.core.leases import lease
from flows.images.manifests import INDEX, Manifest, canonical, digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import BlobLost, RegistryError
from flows.images.stages import Stage
from flows.publishing import sbom
from flows.signing.trust import ENVELOPE, STATEMENT

with lazily(globals()):
    from flows.images.artifacts import Artifacts  # two seconds, where jsonschema has all its formats

KIND = "application/vnd.refit.evidence.v1"
PACKAGES, SIZES, SBOM = "packages.json", "sizes.json", "sbom.cdx.json"
PROVENANCE, CHECKS, LOCK = "provenance.json", "checks.json", "Pipfile.lock"
SIGNATURE = "provenance.dsse.json"
_OF_A_RUN = {PROVENANCE, CHECKS}
_MEDIA_TYPES = {SBOM: sbom.SBOM_TYPE, PROVENANCE: STATEMENT, SIGNATURE: ENVELOPE}
_TITLE, _NUMBER = "org.opencontainers.image.title", "io.refit.number"
_MOST_DIGITS = 18
_REFERENCE = re.compile(r"\w[\w.-]{0,127}|sha256:[0-9a-f]{64}", re.ASCII)
_INDEX_TAG = re.compile(r"sha256-[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """A file that is attached to an image: its name, media type, digest and size (bytes)."""

    name: str
    media_type: str
    digest: str
    size: int


def of_stages(stages: Iterable[Stage]) -> dict[str, bytes]:
    """The evidence that follows from an image's stages: file name → content."""
    stages = tuple(stages)
    return {
        PACKAGES: canonical(packages_of(stages)),
        SBOM: canonical(sbom.document(stages)),
        **{f"{s.name}.system.txt": "".join(f"{p}\n" for p in s.system).encode() for s in stages if s.system},
        **{f"{s.name}.requirements.txt": "\n".join((*s.requirements, "")).encode() for s in stages if s.requirements},
        **{f"{s.name}.{PurePosixPath(npm.LOCK).name}": s.files[npm.LOCK] for s in stages if npm.LOCK in s.files},
    }


def packages_of(stages: Iterable[Stage]) -> dict[str, str]:
    """All packages of an image: `deb/tzdata` or `pypi/tzdata` → version, because both worlds use the same names."""
    return {f"{p.kind}/{p.name}": p.version for p in sbom.packages_of(stages)}


def attach(registry: Registry, subject: Manifest, files: Mapping[str, bytes], database: Engine) -> None:
    """Attach files to an image, unless it has all of them, but for those that tell of one run alone.

    Earlier attachments that are no longer whole in the registry don't count.
    """
    if not _has(registry, subject.digest, {name: digest_of(content) for name, content in files.items()}):
        add(registry, subject, KIND, files, database)


def add(registry: Registry, subject: Manifest, kind: str, files: Mapping[str, bytes], database: Engine) -> None:
    """Attach files of a kind to an image, whatever is attached there."""
    number = {_NUMBER: str(1 + max(map(_number, _attachments(registry, subject.digest, kind)), default=0))}
    typed = {name: (_media_type(name), content) for name, content in files.items()}
    entry = Artifacts(registry, kind).attach(subject, typed, number)
    if registry.referrers(registry.repository, subject.digest) is None:
        _list(registry, subject.digest, entry, database)


def contents(registry: Registry, digest: str, kind: str, name: str, most: int) -> list[bytes]:
    """Files of this name in the attachments of a kind: the newest first, so many at most."""
    files, artifacts = [], Artifacts(registry, kind)
    for entry in _attachments(registry, digest, kind)[: -most - 1 : -1]:
        for layer in artifacts.files(str(entry["digest"])):
            if _title(layer) == name:
                with suppress(BlobLost):
                    files.append(artifacts.fetch(layer))
    return files


def _has(registry: Registry, subject: str, entry: Mapping[str, str]) -> bool:
    """Whether all of these files (name → digest) are attached, and whole."""
    repository, last = registry.repository, newest(registry, subject)
    attached = {file.name: file.digest for file in listed(registry, subject)}
    if last is None or any(name not in attached for name in entry):
        return False
    if any(attached[name] != digest for name, digest in entry.items() if name not in _OF_A_RUN):
        return False
    return not registry.absent(repository, {*last.part_digests, *(attached[name] for name in entry)})


def newest(registry: Registry, digest: str) -> Manifest | None:
    """The manifest that names what was last attached to an image; none if nothing was, or the registry has lost it."""
    entries = _attachments(registry, digest)
    return registry.find(registry.repository, str(entries[-1]["digest"])) if entries else None


def newest_of_each(registry: Registry, digest: str, kinds: Iterable[str]) -> tuple[Manifest, ...] | None:
    """As `newest`, for attachments of each kind; none if one of them is missing."""
    entries, newest = _entries(registry, digest), []
    for kind in kinds:
        of_kind = [entry for entry in entries if entry.get("artifactType") == kind]
        manifest = registry.find(registry.repository, str(of_kind[-1]["digest"])) if of_kind else None
        if manifest is None:
            return None
        newest.append(manifest)
    return tuple(newest)


def listed(registry: Registry, digest: str) -> tuple[File, ...]:
    """The files that are attached to the image with this digest, by name; of two with one name the newer."""
    files: dict[str, File] = {}
    artifacts = Artifacts(registry, KIND)
    for entry in _attachments(registry, digest):
        # One that somebody deleted, or a registry's `garbage-collect --delete-untagged`, is attached anew some day.
        for layer in artifacts.files(str(entry["digest"])):
            name = _title(layer)
            files[name] = File(name, layer["mediaType"], layer["digest"], layer["size"])
    return tuple(files[name] for name in sorted(files))


def read(registry: Registry, digest: str, name: str) -> bytes:
    """The content of a file that is attached to the image with this digest.

    Raises:
        UnknownName: it has no such file.
    """
    files = {file.name: file for file in listed(registry, digest)}
    if name not in files:
        raise UnknownName("file", name, files, where=f"the evidence of {digest}")
    return _content(registry, files[name])


def packages(registry: Registry, digest: str) -> dict[str, str]:
    """The packages of the image with this digest (see `packages_of`); empty if nothing is known of it."""
    return dict(_json(registry, digest, PACKAGES))


def sizes(registry: Registry, digest: str) -> dict[str, int]:
    """Package → bytes that it takes in the image with this digest; empty if nothing is known of it."""
    return dict(_json(registry, digest, SIZES))


def findings(registry: Registry, digest: str) -> list[dict[str, Any]]:
    """The results of the checks of the image with this digest; empty if nothing is known of it."""
    return list(_json(registry, digest, CHECKS) or ())


def find(registry: Registry, name: str) -> Manifest:
    """The image that a tag, an alias or a digest names.

    Raises:
        UnknownName: there is none.
    """
    image = registry.find(registry.repository, name) if _REFERENCE.fullmatch(name) else None
    if image is None or "layers" not in image.document:
        tags = [tag for tag in registry.tags(registry.repository) if not _INDEX_TAG.fullmatch(tag)]
        raise UnknownName("image", name, tags, where=f"{registry.host}/{registry.repository}")
    return image


def _json(registry: Registry, digest: str, name: str) -> Any:
    files = [file for file in listed(registry, digest) if file.name == name]
    with suppress(BlobLost):  # it is attached anew when the image is published the next time, which asks for it, too
        return json.loads(_content(registry, files[0])) if files else {}
    return {}


def _content(registry: Registry, file: File) -> bytes:
    return Artifacts(registry, KIND).fetch({"digest": file.digest, "size": file.size})


def _title(layer: Mapping[str, Any]) -> str:
    """The name of an attached file; empty if it has none."""
    title = layer.get("annotations", {}).get(_TITLE)
    return title if isinstance(title, str) else ""


def _media_type(name: str) -> str:
    return _MEDIA_TYPES.get(name, "application/json" if name.endswith(".json") else "text/plain")


def _attachments(registry: Registry, digest: str, kind: str = KIND) -> list[dict[str, Any]]:
    """Descriptors of what is attached to an image, the newest last."""
    return [entry for entry in _entries(registry, digest) if entry.get("artifactType") == kind]


def _entries(registry: Registry, digest: str) -> list[dict[str, Any]]:
    """As `_attachments`, of all kinds."""
    entries = registry.referrers(registry.repository, digest)
    return sorted(_indexed(registry, digest) if entries is None else entries, key=_number)


def _number(entry: Mapping[str, Any]) -> int:
    """The number of an attachment: registries list them in no order, and clocks may go backwards."""
    written = entry.get("annotations", {}).get(_NUMBER, "")
    return int(str(written)[:_MOST_DIGITS]) if str(written).isdecimal() else 0


def _list(registry: Registry, digest: str, entry: Mapping[str, Any], database: Engine) -> None:
    """Add an attachment to the index of an image's attachments, in which no registry lets stand what it has lost."""
    repository, tag = registry.repository, _index_tag(digest)
    # Reading and writing again is two steps, and registries can't compare and swap.
    with lease(database, f"tag/{registry.host}/{repository}:{tag}"):
        others = {str(e["digest"]): e for e in _indexed(registry, digest) if e["digest"] != entry["digest"]}
        present = registry.digests(repository, others.keys())
        entries = [*(e for other, e in others.items() if other in present), entry]
        index = canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
        written = registry.put_manifest(repository, tag, index, INDEX)
        if registry.digest(repository, tag) != written:
            raise RegistryError(
                f"The registry {registry.host} did not keep {repository}:{tag}.",
                why="Something else than Refit writes this tag too.",
                hint="run it again.",
            )


def _indexed(registry: Registry, digest: str) -> list[dict[str, Any]]:
    index = registry.find(registry.repository, _index_tag(digest))
    return list(index.document.get("manifests", ())) if index else []


def _index_tag(digest: str) -> str:
    return digest.replace(":", "-")
