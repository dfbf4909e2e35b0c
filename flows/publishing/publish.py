"""A built stage becomes the image of a profile: labelled, checked, tagged.

The order is push by digest → checks on that digest → evidence → signature → date tag → alias. Each step can be
repeated, and the next is only taken when the one before is done: a tag that Refit writes points at an image that passed
its checks.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from pydantic import ValidationError

from flows.catalog.model import Access, Profile
from flows.catalog.tag import Tag
from flows.core import progress
from flows.core.errors import RefitError
from flows.core.leases import lease
from flows.core.progress import State
from flows.core.settings.personal_builds import OWNER_LABEL
from flows.core.threads import at_once
from flows.images.build import Built
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.images.run import Run
from flows.locks.pipfile import FIRST_CATEGORY, read_pipfile
from flows.publishing import checks, evidence, installed, provenance
from flows.publishing.container_checks import ContainerLook
from flows.publishing.published import Published
from flows.publishing.signatures import Publications
from flows.signing.trust import ENVELOPE

EVENT = "refit.profile.published"  # what the server hears of each image that is new
_ACCESS = "io.refit.access"


def publish(
    profile: Profile,
    top: Built,
    files: Mapping[str, bytes],
    run: Run,
    predicate: Mapping[str, object] | None = None,
    look: checks.Look | None = None,
) -> Published:
    """Publish the top stage of a profile as its image.

    Args:
        files: evidence to attach.
        run: its registry and date, what checks need, and the database whose leases guard the tags.
        predicate: how the image was made (see `provenance.predicate`); none: nobody knows more than for whom.
        look: starts the image for its checks; none: in a container of this machine.

    Raises:
        ChecksFailed: the image was pushed, but no tag points at it.
        RefitError: the registry doesn't do its part.
    """
    registry, settings, database = run.registry, run.settings, run.database
    publications = Publications(settings, database, registry)
    tag = _tag(profile, run.date)
    with progress.reported(tag.alias):
        image = push_labelled(registry, profile, top)
        progress.report(tag.alias, State.running, "checking")
        report = _checked(image, top, profile, run, look or ContainerLook())
        size = _size(registry, profile, image, report.sizes, _before(registry, publications, tag))
        packages = installed.finding(files, report.packages)
        report = replace(report, findings=(*report.findings, packages, size))
        if not report.passed:
            raise checks.ChecksFailed(tag.alias, report.findings)
        document = _provenance(registry, image, predicate or provenance.asked(profile.stem, profile.release))
        results = {**_results(profile, report), evidence.PROVENANCE: document}
        evidence.attach(registry, image, {**installed.completed(files, report.packages), **results}, database)
        publications.sign(image, document, profile.stem, profile.release)
        with lease(database, f"tag/{registry.host}/{registry.repository}:{tag.alias}"):
            given = _give_date_tag(registry, tag, image)
            moved = _point(registry, tag.alias, image)
    return Published(profile.stem, given, image.digest, top.digest, image.size, moved, report.seconds)


def _checked(image: Manifest, top: Built, profile: Profile, run: Run, look: checks.Look) -> checks.Report:
    reference = f"docker://{run.registry.host}/{run.registry.repository}@{image.digest}"
    access, vouched = profile.access, not profile.bundle.owner
    return checks.run(reference, top.digest, access, _asked(profile), run.settings, look=look, vouched=vouched)


def _provenance(registry: Registry, image: Manifest, predicate: Mapping[str, object]) -> bytes:
    return canonical(provenance.statement(registry.repository, image.digest, predicate))


def already(
    contents: Iterable[tuple[Profile, str]], registry: Registry, publications: Publications
) -> tuple[Published, ...]:
    """The images for which everything is done and of which the registry has lost nothing; nothing is written.

    Args:
        contents: profiles, each with the digest of its top stage.
        registry: where their images are.
        publications: which of them count.
    """
    tags = registry.tags(registry.repository)

    def look(pair: tuple[Profile, str]) -> tuple[Published, tuple[str, ...]] | None:
        profile, content = pair
        return _tagged(profile, content, tags, registry)

    earlier = [seen for seen in at_once(look, contents) if seen]
    # Images share most of what they are made of: each part is asked for once.
    lost = {*registry.absent(registry.repository, {part for _, parts in earlier for part in parts})}
    whole = [image for image, parts in earlier if not lost.intersection(parts)]
    refused = publications.refusals([image.digest for image in whole])
    return tuple(image for image in whole if image.digest not in refused)


def _tagged(
    profile: Profile, content: str, tags: Iterable[str], registry: Registry
) -> tuple[Published, tuple[str, ...]] | None:
    """The image of a profile that has its tags and its evidence, with the digests of all that both are made of."""
    alias = f"{profile.stem}_{profile.release}"
    image, _ = _labelled_image(registry, profile, content)
    if registry.digest(registry.repository, alias) != image.digest:
        return None
    attached = evidence.newest_of_each(registry, image.digest, (evidence.KIND, ENVELOPE))
    dated = sorted((tag for tag in tags if tag.startswith(f"{alias}_")), reverse=True)
    given = next((tag for tag in dated if registry.digest(registry.repository, tag) == image.digest), None)
    if attached is None or given is None:
        return None
    published = Published(profile.stem, given, image.digest, content, image.size, new=False)
    return published, (*image.part_digests, *(part for each in attached for part in each.part_digests))


def current(profile_stem: str, release: str, registry: Registry) -> str | None:
    """The digest that the alias of a profile and release points at; none before it was published."""
    return registry.digest(registry.repository, f"{profile_stem}_{release}")


def access_of(image: str, registry: Registry) -> Access | None:
    """How the IDE in the image with this digest is reached; none if there is no such image, or it doesn't say.

    Raises:
        RefitError: its description can't be understood.
    """
    manifest = registry.find(registry.repository, image)
    config = registry.config(registry.repository, manifest) if manifest else {"config": {}}
    written = (config["config"].get("Labels") or {}).get(_ACCESS)
    try:
        return Access.model_validate_json(written) if written else None
    except ValidationError as error:
        raise RefitError(
            f"The label {_ACCESS} of the image {image} can't be understood.",
            why=str(error),
            hint="bring Refit to the version that built the image, or build it with this one.",
        ) from None


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
        _ACCESS: profile.access.as_label(),
        **({OWNER_LABEL: profile.bundle.owner} if profile.bundle.owner else {}),
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


def _results(profile: Profile, report: checks.Report) -> dict[str, bytes]:
    """The evidence that is there only once the image was looked at."""
    results = {
        evidence.SIZES: canonical(report.sizes),
        evidence.CHECKS: canonical([asdict(finding) for finding in report.findings]),
    }
    if folder := profile.bundle.pythons.get(profile.python):
        results[evidence.LOCK] = (folder / evidence.LOCK).read_bytes()
    return results


def _asked(profile: Profile) -> tuple[str, ...]:
    """The Python packages that the image's Pipfile names for it."""
    folder = profile.bundle.pythons.get(profile.python)
    categories = (FIRST_CATEGORY, profile.ide.config.category)
    return read_pipfile(folder / "Pipfile").everywhere(categories) if folder else ()


def _before(registry: Registry, publications: Publications, tag: Tag) -> Manifest | None:
    """The image that people have now; none where the alias points at what doesn't count."""
    manifest = registry.find(registry.repository, tag.alias)
    return None if manifest is None or publications.refusals([manifest.digest]) else manifest


def _size(
    registry: Registry, profile: Profile, image: Manifest, sizes: Mapping[str, int], before: Manifest | None
) -> checks.Finding:
    """Whether an image has a size that it may have, beside the one that people have now."""
    bytes_before = evidence.sizes(registry, before.digest) if before else {}
    return checks.size(image.size, before.size if before else None, profile.size_budget, sizes, bytes_before)


def _labelled_image(registry: Registry, profile: Profile, content: str) -> tuple[Manifest, bytes]:
    """Manifest and configuration of a profile's image; the layers are those of the stage with the digest `content`."""
    stage = registry.manifest(registry.stages, content)
    config = canonical(labelled(registry.config(registry.stages, stage), profile, content))
    document = canonical({**stage.document, "mediaType": MANIFEST, "config": descriptor(CONFIG, config)})
    return Manifest(digest_of(document), MANIFEST, document), config


def push_labelled(registry: Registry, profile: Profile, top: Built) -> Manifest:
    """Put the image of a profile into the registry: its top stage with the labels of its release. No tag names it."""
    image, config = _labelled_image(registry, profile, top.digest)
    for layer in image.document["layers"]:
        registry.mount(registry.repository, layer["digest"], registry.stages, int(layer["size"]))
    registry.put_blob(registry.repository, config)
    registry.keep_manifest(registry.repository, image)
    return image


def _give_date_tag(registry: Registry, tag: Tag, image: Manifest) -> str:
    """The date tag of this image: one that it has already in its release, else a new one. Date tags never move."""
    existing = [name for name in registry.tags(registry.repository) if name.startswith(f"{tag.alias}_")]
    for name in sorted(existing, reverse=True):
        if registry.digest(registry.repository, name) == image.digest:
            return name
    free = str(tag.free(existing))
    _point(registry, free, image)
    return free


def _point(registry: Registry, name: str, image: Manifest) -> bool:
    """Let a tag point at an image; returns whether it didn't before."""
    if registry.digest(registry.repository, name) == image.digest:
        return False
    registry.put_manifest(registry.repository, name, image.content, image.media_type)
    seen = registry.find(registry.repository, name)
    if seen is None or seen.digest != image.digest:
        raise RegistryError(
            f"The tag {name} in the registry {registry.host} is not where it was put.",
            why="Something else than Refit writes the tags of this repository too, or the registry doesn't keep them.",
            hint="find out what, and run it again.",
        )
    return True
