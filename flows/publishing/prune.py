"""Pruning of the registry: a pure plan of what stays, and its careful execution.

Everything is decided by digest, because a registry that deletes a manifest drops all its tags: one reason to keep any
of them keeps them all. Each decision comes after those that it depends on: evidence after its image, stages after
the images that stand on them.

The layer of a closed stage is found by a note, which names the parent on which the layer stood last: without it, the
layer can't be carried to the next one. So that parent stays as long as the note does, and no longer: a layer that was
carried has a new note, with the new parent; and the note itself stays as long as an image that stays has the layer, or
it is young. Where no registry tells when it was written, it is as old as its parent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from sqlalchemy import Engine

from flows.catalog.tag import Tag, tags_among
from flows.core import progress
from flows.core.leases import lease
from flows.core.progress import State
from flows.core.settings import Settings
from flows.images.registry import Registry

InUse = Mapping[str, str]
"""Digest → who needs it, in words."""

UNFINISHED = "unfinished"  # the tag under which a stage is pushed before it has its digest
ATTACHED = re.compile(r"sha256-[0-9a-f]{64}")


@dataclass(frozen=True)
class Policy:
    """How much stays: the newest `images` of each profile and release, and whatever is younger than `days`."""

    images: int
    days: float


@dataclass(frozen=True)
class Stored:
    """A manifest in the registry, and what decides whether it stays.

    Attributes:
        repository: that it lies in.
        digest: its own.
        tags: all that point at it.
        layers: digest → bytes (compressed).
        made: when it was pushed or built; none: nobody knows.
        subject: digest of what it is attached to; empty: it stands for itself.
        content: digest of the stage that an image is made of; empty where nobody knows.
        name: of a stage.
        parent: digest of the stage that a stage or a noted layer stands on; empty for a base, or where nobody knows.
        wheels: whether it is a stage of wheels, which took long to build and stands on nothing.
    """

    repository: str
    digest: str
    tags: tuple[str, ...] = ()
    layers: Mapping[str, int] = field(default_factory=dict)
    made: datetime | None = None
    subject: str = ""
    content: str = ""
    name: str = ""
    parent: str = ""
    wheels: bool = False


@dataclass(frozen=True)
class OwnImages:
    """Images of a person's own profiles.

    Attributes:
        images: everything in the repository of that person.
        stems: of the profiles that they have now; images of others are kept by nothing but their users and their age.
    """

    images: tuple[Stored, ...]
    stems: frozenset[str]


@dataclass(frozen=True)
class Decision:
    """The decision on one manifest, and its reason."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Plan:
    """The manifests that stay and those that go; `bytes` (compressed) are those of layers in none that stays."""

    keep: tuple[Decision, ...]
    remove: tuple[Decision, ...]
    bytes: int


def plan(
    images: Iterable[Stored],
    stages: Iterable[Stored],
    in_use: InUse,
    now: datetime,
    policy: Policy,
    people: Iterable[OwnImages] = (),
) -> Plan:
    """Decide over everything in the repositories of images and in that of stages. Pure.

    An image of a person's own lies in the repository of all, too, by its digest alone, for as long as in theirs.

    Args:
        images: images and what is attached to them.
        stages: stages, and what builds have left among them.
        in_use: digests that must stay, whatever else is said of them.
        now: the present moment.
        policy: how much stays.
        people: the images of each person.
    """
    images, stages = tuple(images), tuple(stages)
    own = [(image, kept) for each in people for kept in [_kept_of(each, in_use, now, policy)] for image in each.images]
    theirs = [image for image, kept in own if image.digest in kept]
    carried = {image.digest: f"{image.repository} has it" for image in theirs if not image.subject}
    kept = _kept_images(images, {**carried, **in_use}, now, policy)
    staying_images = [*(image for image in images if image.digest in kept), *theirs]
    kept_stages = _kept_stages(stages, staying_images, in_use, now, policy)
    everything = [*((image, kept) for image in images), *own, *((stage, kept_stages) for stage in stages)]
    staying = [item for item, reasons in everything if item.digest in reasons]
    going = [item for item, reasons in everything if item.digest not in reasons]
    freed = {layer: size for item in going for layer, size in item.layers.items()}
    for item in staying:
        for layer in item.layers:
            freed.pop(layer, None)
    return Plan(
        keep=tuple(_decision(item, reasons[item.digest]) for item, reasons in everything if item.digest in reasons),
        # Attachments without an image can be told from others and go next time; an image without its evidence can't.
        remove=tuple(_decision(item, _why_not(item)) for item in sorted(going, key=lambda item: bool(item.subject))),
        bytes=sum(freed.values()),
    )


def _kept_of(person: OwnImages, in_use: InUse, now: datetime, policy: Policy) -> dict[str, str]:
    return _kept_images(person.images, in_use, now, policy, person.stems.__contains__)


def _kept_images(
    images: Collection[Stored],
    in_use: InUse,
    now: datetime,
    policy: Policy,
    lives: Callable[[str], bool] = lambda _: True,
) -> dict[str, str]:
    """The images that stay, with reasons; the stems of profiles that people can start from are those of `lives`."""
    tags = {tag: image for image in images for tag in image.tags}
    newest = _newest({str(tag): tags[str(tag)] for tag in tags_among(tags) if lives(tag.stem)}, policy.images)
    aliases = {tag.alias for tag in tags_among(tags)}
    living = {tag.alias for tag in tags_among(tags) if lives(tag.stem)}
    dated = {str(tag) for tag in tags_among(tags)}

    def reason(image: Stored) -> str:
        current = [tag for tag in image.tags if tag in living]
        foreign = [tag for tag in image.tags if tag not in aliases | dated and not ATTACHED.fullmatch(tag)]
        if image.digest in in_use:
            return in_use[image.digest]
        if foreign:
            return f"{foreign[0]} is no tag of Refit's"
        if image.subject:
            return ""
        if current:
            return f"{current[0]} points at it"
        if image.digest in newest:
            return f"one of the newest {policy.images} of {newest[image.digest]}"
        return _young(image, now, policy)

    kept = {image.digest: why for image in images if (why := reason(image))}
    return _grown(kept, images, lambda image, kept: "attached to what stays" if image.subject in kept else "")


def _newest(tags: Mapping[str, Stored], count: int) -> dict[str, str]:
    """Digest → alias, for the newest images of each alias."""
    of_alias: dict[str, list[Tag]] = {}
    for tag in tags_among(tags):
        of_alias.setdefault(tag.alias, []).append(tag)
    return {
        digest: alias
        for alias, dated in of_alias.items()
        for digest in list(
            dict.fromkeys(
                tags[str(tag)].digest for tag in sorted(dated, key=lambda t: (t.date, t.number), reverse=True)
            )
        )[:count]
    }


def _kept_stages(
    stages: Collection[Stored], images: Collection[Stored], in_use: InUse, now: datetime, policy: Policy
) -> dict[str, str]:
    contents = {image.content for image in images}
    stacks = [image.layers.keys() for image in images if not image.subject]
    parents = {stage.parent for stage in stages if stage.digest in contents}

    def reason(stage: Stored) -> str:
        if stage.digest in in_use:
            return in_use[stage.digest]
        if stage.digest in contents:
            return "an image that stays is made of it"
        if stage.subject or not _is_stage(stage):
            return ""
        if stage.digest in parents or any(stage.layers.keys() <= stack for stack in stacks):
            return "an image that stays stands on it"
        return _young(stage, now, policy)

    kept = {stage.digest: why for stage in stages if (why := reason(stage))}
    newest = _newest_of_name(stages)

    def also(stage: Stored, kept: Collection[str]) -> str:
        if stage.subject:
            return "the signature of a stage that stays" if stage.subject in kept else ""
        if any(child.parent == stage.digest for child in stages if child.digest in kept):
            return "a stage that stays stands on it"
        if stage.wheels and stage.digest in newest:
            return f"the newest {stage.name}"
        # A stage that no image is made of, as that in which locks are made, is needed as long as its base is.
        return "the newest on a stage that stays" if stage.digest in newest and stage.parent in kept else ""

    return _grown(kept, [stage for stage in stages if _is_stage(stage)], also)


def _newest_of_name(stages: Iterable[Stored]) -> frozenset[str]:
    newest: dict[str, Stored] = {}
    for stage in stages:
        before = newest.get(stage.name)
        if stage.name and stage.made and (before is None or before.made is None or before.made < stage.made):
            newest[stage.name] = stage
    return frozenset(stage.digest for stage in newest.values())


def _is_stage(stage: Stored) -> bool:
    """Whether it can be found by its key; leftovers of a build can't."""
    return any(tag != UNFINISHED for tag in stage.tags)


def _young(item: Stored, now: datetime, policy: Policy) -> str:
    days = [datetime.combine(tag.date, time(), UTC) for tag in tags_among(item.tags)]
    dates = [*days, *([item.made] if item.made else [])]
    if not dates:
        return "nobody knows how old it is"
    return f"younger than {policy.days:g} days" if now - max(dates) < timedelta(days=policy.days) else ""


def _grown(
    kept: Mapping[str, str], items: Collection[Stored], reason: Callable[[Stored, Collection[str]], str]
) -> dict[str, str]:
    """`kept` and all that stays because of it, and because of that, and so on."""
    grown = dict(kept)
    while more := {item.digest: why for item in items if item.digest not in grown and (why := reason(item, grown))}:
        grown |= more
    return grown


def _decision(item: Stored, reason: str) -> Decision:
    return Decision(item.repository, item.digest, item.tags, reason)


def _why_not(item: Stored) -> str:
    if item.subject:
        return "what it is attached to goes"
    if list(tags_among(item.tags)):
        return "old, and nobody uses it"
    return "nothing that stays needs it" if item.tags else "no tag points at it"


def remove(chosen: Plan, registry: Registry, database: Engine, in_use: Callable[[], InUse]) -> Plan:
    """Delete from the registry what the plan says, unless somebody needs it now; returns what became of all.

    The caller sees to it that nothing is built meanwhile (see `gate`). `in_use` is asked before each deletion.
    """
    tags = {(item.repository, tag) for item in (*chosen.keep, *chosen.remove) for tag in item.tags}
    gone, spared = [], list(chosen.keep)
    for item in chosen.remove:
        with ExitStack() as stack:
            for name in sorted(_leases(item)):
                stack.enter_context(lease(database, f"tag/{registry.host}/{item.repository}:{name}"))
            objection = _objection(item, registry, tags, in_use())
            if objection:
                spared.append(Decision(item.repository, item.digest, item.tags, objection))
            else:
                registry.delete(item.repository, item.digest)
                gone.append(item)
                progress.report("registry", State.running, f"{len(gone)} of {len(chosen.remove)} deleted")
    return Plan(tuple(spared), tuple(gone), chosen.bytes)


def _leases(item: Decision) -> set[str]:
    """The names under which publishing and attaching write these tags."""
    dated = {str(tag): tag.alias for tag in tags_among(item.tags)}
    return {dated.get(tag, tag) for tag in item.tags}


def _objection(item: Decision, registry: Registry, tags: Collection[tuple[str, str]], in_use: InUse) -> str:
    if item.digest in in_use:
        return in_use[item.digest]
    new = {tag for tag in registry.tags(item.repository) if (item.repository, tag) not in tags}
    for tag in sorted({*new, *_leases(item)} - set(item.tags)):
        if registry.digest(item.repository, tag) == item.digest:
            return f"{tag} points at it now"
    moved = [tag for tag in item.tags if registry.digest(item.repository, tag) not in (item.digest, None)]
    return f"{moved[0]} was moved meanwhile" if moved else ""


def storage_of(settings: Settings) -> Path | None:
    """The folder of the embedded registry; none where another registry is in use."""
    return None if settings.registry else settings.home / "registry"
