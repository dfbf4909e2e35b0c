"""Stages and layers of stages that are found by their keys bear a signature: tags are moved by whoever may push."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flows.images.manifests import MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.signing.trust import ENVELOPE, Distrusted, Trust, statement

SIGNATURE = "io.refit.signature"
_KIND = "urn:io.refit:document:v1"


def signed(document: Mapping[str, object], name: str, trust: Trust) -> dict[str, object]:
    """A manifest with a signature of all that is in it, and of the name under which it is stored."""
    bare = _bare(document)
    statement_of_key = statement(_KIND, name, digest_of(canonical(bare)), {})
    annotations = {**_annotations(bare), SIGNATURE: trust.sign(canonical(statement_of_key)).decode()}
    return {**bare, "annotations": annotations}


def is_signed(manifest: Manifest, name: str, trust: Trust) -> bool:
    """Whether somebody whose signature counts has stored a manifest, as it is, under this name."""
    envelope = _annotations(manifest.document).get(SIGNATURE)
    if not isinstance(envelope, str):
        return False
    try:
        statement = trust.opened(envelope.encode())
    except Distrusted:
        return False
    return (statement.kind, statement.name, statement.subject) == (
        _KIND,
        name,
        digest_of(canonical(_bare(manifest.document))),
    )


class Signatures:
    """The signatures of stages: manifests of their own in the repository of stages, beside the tags by key."""

    def __init__(self, registry: Registry, trust: Trust) -> None:
        self._registry, self._trust = registry, trust

    def sign(self, key: str, stage: Manifest) -> None:
        """Let others who trust us take this stage for what was made by its key."""
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ENVELOPE,
            "config": (empty := self._registry.put_empty(self._registry.stages)),
            "layers": [empty],
            "subject": descriptor(stage.media_type, stage.content),
        }
        name = signature_tag(key)
        content = canonical(signed(document, name, self._trust))
        self._registry.put_manifest(self._registry.stages, name, content, MANIFEST)

    def of(self, key: str) -> str:
        """The digest of the stage that somebody whose signature counts has made by this key; empty: nobody has."""
        name = signature_tag(key)
        manifest = self._registry.find(self._registry.stages, name)
        if manifest is None or not is_signed(manifest, name, self._trust):
            return ""
        return str(manifest.document.get("subject", {}).get("digest", ""))


def signature_tag(key: str) -> str:
    """The tag of the signature of the stage with this key."""
    return f"{key}.signature"


def _bare(document: Mapping[str, object]) -> dict[str, object]:
    """All of a manifest but its signature, as it comes back from its text."""
    annotations = {name: value for name, value in _annotations(document).items() if name != SIGNATURE}
    rest = {name: value for name, value in document.items() if name != "annotations"}
    bare: dict[str, object] = json.loads(canonical({**rest, "annotations": annotations}))
    return bare


def _annotations(document: Mapping[str, object]) -> Mapping[str, object]:
    annotations = document.get("annotations")
    return annotations if isinstance(annotations, Mapping) else {}
