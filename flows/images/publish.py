"""A built stage becomes the image of a profile: labelled, checked, tagged.

The order is push by digest → checks on that digest → evidence → date tag → alias. Each step can be repeated, and the
next is only taken when the one before is done: a tag that exists points at an image that passed its checks.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine

from flows import progress
from flows.catalog.model import Profile
from flows.catalog.tag import Tag
from flows.database import lease
from flows.images import checks, evidence
from flows.images.build import Built
from flows.images.registry import CONFIG, MANIFEST, Manifest, Registry, RegistryError, canonical, descriptor, digest_of
from flows.progress import State
from flows.settings import Settings


@dataclass(frozen=True)
class Published:
    """The image of a profile in the registry.

    Attributes:
        profile: stem of its tags.
        tag: the date tag that names it.
        digest: the image's, with the labels of the release.
        content_digest: that of the unlabelled stage; the same in every release that ships the same content.
        size: bytes (compressed) of all its layers.
        new: the alias of its profile and release moved to it now.
        seconds: how long its checks took when they were made.
    """

    profile: str
    tag: str
    digest: str
    content_digest: str
    size: int
    new: bool
    seconds: float = 0.0


def publish(
    profile: Profile,
    top: Built,
    files: Mapping[str, bytes],
    date: datetime.date,
    settings: Settings,
    database: Engine,
) -> Published:
    """Publish the top stage of a profile as its image.

    Args:
        profile: whose image it is.
        top: its top stage.
        files: evidence to attach.
        date: UTC date for the tag, the same for all images of a run.
        settings: where the registry is, and what checks need.
        database: holds the leases under which tags are written.

    Raises:
        ChecksFailed: the image was pushed, but no tag points at it.
        RefitError: the registry doesn't do its part.
    """
    registry = Registry(settings)
    tag = _tag(profile, date)
    with progress.reported(tag.alias):
        image = _push_labelled(registry, profile, top)
        reference = f"docker://{registry.host}/{registry.repository}@{image.digest}"
        progress.report(tag.alias, State.running, "checking")
        findings = checks.run(reference, top.digest, profile.ide.config.access, settings)
        if not all(finding.passed for finding in findings):
            raise checks.ChecksFailed(tag.alias, findings)
        evidence.attach(registry, image, files, database)
        with lease(database, f"tag/{registry.host}/{registry.repository}:{tag.alias}"):
            given = _give_date_tag(registry, tag, image)
            moved = _point(registry, tag.alias, image)
    seconds = sum(finding.seconds for finding in findings)
    return Published(profile.stem, given, image.digest, top.digest, image.size, moved, seconds)


def current(profile_stem: str, release: str, registry: Registry) -> str | None:
    """The digest that the alias of a profile and release points at; none before it was published."""
    return registry.digest(registry.repository, f"{profile_stem}_{release}")


def labelled(config: Mapping[str, object], profile: Profile, content: str) -> dict[str, object]:
    """An image's configuration with the labels of a profile and its release. Pure."""
    inner = config.get("config")
    inside = dict(inner) if isinstance(inner, Mapping) else {}
    labels = {
        **(inside.get("Labels") or {}),
        "org.opencontainers.image.title": profile.stem,
        "org.opencontainers.image.version": profile.release,
        "io.refit.profile": profile.stem,
        "io.refit.release": profile.release,
        "io.refit.content": content,
    }
    return {**config, "config": {**inside, "Labels": labels}}


def _tag(profile: Profile, date: datetime.date) -> Tag:
    return Tag(
        cuda=profile.cuda,
        ide=profile.ide.name,
        bundle=profile.bundle.name,
        os=profile.base.name,
        python=profile.python,
        release=profile.release,
        date=date,
    )


def _push_labelled(registry: Registry, profile: Profile, top: Built) -> Manifest:
    """Write the image's configuration and manifest; the layers are those of the stage."""
    source, repository = registry.stages, registry.repository
    stage = registry.manifest(source, top.digest)
    config = canonical(labelled(registry.config(source, stage), profile, top.digest))
    for layer in stage.document["layers"]:
        registry.mount(repository, layer["digest"], source)
    registry.put_blob(repository, config)
    content = canonical({**stage.document, "mediaType": MANIFEST, "config": descriptor(CONFIG, config)})
    digest = registry.put_manifest(repository, digest_of(content), content, MANIFEST)
    return Manifest(digest, MANIFEST, content)


def _give_date_tag(registry: Registry, wanted: Tag, image: Manifest) -> str:
    """The date tag of this image: one that it has already in its release, else a new one. Date tags never move."""
    existing = [name for name in registry.tags(registry.repository) if name.startswith(f"{wanted.alias}_")]
    for name in sorted(existing, reverse=True):
        if registry.digest(registry.repository, name) == image.digest:
            return name
    free = str(wanted.free(existing))
    _point(registry, free, image)
    return free


def _point(registry: Registry, name: str, image: Manifest) -> bool:
    """Let a tag point at an image; returns whether it didn't before."""
    if registry.digest(registry.repository, name) == image.digest:
        return False
    registry.put_manifest(registry.repository, name, image.content, image.media_type)
    if registry.digest(registry.repository, name) != image.digest:
        raise RegistryError(
            f"The tag {name} in the registry {registry.host} is not where it was put.",
            why="Something else than Refit writes the tags of this repository too.",
            fix="find out what, and run it again.",
        )
    return True
