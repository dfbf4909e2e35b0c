"""Signing images that a person vouches for: those from before images were signed."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from flows.catalog.tag import tags_among
from flows.core.errors import UnknownName
from flows.images.manifests import canonical
from flows.images.registry import Registry
from flows.publishing import evidence, provenance
from flows.publishing.signatures import Publications, Refusal
from flows.signing.trust import Doubt

# Doubts about an image for which a person can vouch. An image that was revoked has to be restored first.
_OPEN = frozenset({Doubt.unsigned, Doubt.unknown_key, Doubt.broken})


@dataclass(frozen=True)
class Candidate:
    """An image that doesn't count and could be signed.

    Attributes:
        digest: its own.
        tags: all that point at it, of those that were looked at.
        profile, release: for which it says that it was made.
        refusal: why it doesn't count.
        tested: whether the findings of its checks are attached, and all passed.
    """

    digest: str
    tags: tuple[str, ...]
    profile: str
    release: str
    refusal: Refusal
    tested: bool


def candidates(
    registry: Registry, publications: Publications, names: Collection[str], profiles: Collection[str], *, dated: bool
) -> tuple[Candidate, ...]:
    """The images that don't count and could be signed.

    Args:
        registry: where they are.
        publications: says what counts.
        names: tags, aliases or digests of images; none: all aliases. A person who names an image may vouch for it
        though
            the key that has signed it was revoked.
        profiles: only of these profiles; none: of all.
        dated: where no names are given, also all images with a date tag.

    Raises:
        UnknownName: there is no such image.
    """
    pointed = {name: evidence.find(registry, name).digest for name in names} if names else _tagged(registry, dated)
    refusals = publications.refusals(pointed.values())
    images = []
    for digest, refusal in refusals.items():
        profile, release = _made_for(registry, digest)
        lost_its_key = refusal.doubt is Doubt.revoked and bool(refusal.key) and bool(names)
        if (refusal.doubt in _OPEN or lost_its_key) and (not profiles or profile in profiles):
            tags = tuple(sorted(name for name, target in pointed.items() if target == digest))
            findings = evidence.findings(registry, digest)
            tested = bool(findings) and all(finding["passed"] for finding in findings)
            images.append(Candidate(digest, tags, profile, release, refusal, tested))
    return tuple(sorted(images, key=lambda image: (image.tags, image.digest)))


def vouch(registry: Registry, publications: Publications, candidate: Candidate) -> None:
    """Sign an image as it is, over its provenance where that is attached.

    Raises:
        RefitError: the key can't be used, or the registry doesn't do its part.
    """
    image = registry.manifest(registry.repository, candidate.digest)
    made_for = candidate.profile, candidate.release
    document = provenance.statement(registry.repository, image.digest, provenance.asked(*made_for))
    with suppress(UnknownName, ValueError, TypeError, KeyError):
        attached = json.loads(evidence.read(registry, image.digest, evidence.PROVENANCE))
        named = attached["predicate"]["buildDefinition"]["externalParameters"]
        if attached["subject"] == document["subject"] and (named["profile"], named["release"]) == made_for:
            document = {**document, "predicate": attached["predicate"]}
    publications.sign(image, canonical(document), *made_for)


def aliases(registry: Registry) -> dict[str, tuple[str, str]]:
    """Alias → profile and release, of all date tags in the registry."""
    return {tag.alias: (tag.stem, tag.release) for tag in tags_among(registry.tags(registry.repository))}


def _tagged(registry: Registry, dated: bool) -> dict[str, str]:
    tags = list(tags_among(registry.tags(registry.repository)))
    names = {tag.alias for tag in tags} | ({str(tag) for tag in tags} if dated else set())
    return registry.digests(registry.repository, sorted(names))


def _made_for(registry: Registry, digest: str) -> tuple[str, str]:
    image = registry.manifest(registry.repository, digest)
    labels = registry.config(registry.repository, image).get("config", {}).get("Labels") or {}
    return str(labels.get("io.refit.profile", "")), str(labels.get("io.refit.release", ""))
