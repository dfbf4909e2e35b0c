"""Offers to people: the profiles of the supported releases, and why one can't be had now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2
from sqlalchemy import Engine

from flows.catalog import load
from flows.catalog.libraries import libraries
from flows.catalog.model import Catalog, Profile
from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.formatting import gigabytes, some
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.publishing.signatures import Publications, Refusal
from flows.sessions import engines

_MOST_NAMED = 12
_FORM = jinja2.Template((Path(__file__).parent / "offers.html").read_text(encoding="utf-8"), autoescape=True)


@dataclass(frozen=True)
class Image:
    """The newest image of a profile: how many bytes its layers have (compressed), and when it was published."""

    size: int
    built: datetime | None


@dataclass(frozen=True)
class Offer:
    """A profile on the form.

    Attributes:
        profile, release: the values that are sent when it is chosen.
        text: its description for people.
        image: of which sessions are made; none: there is none that counts.
        why_not: why it can't be had now; empty: it can.
        memory: bytes that a session of it may take; 0: as the settings say.
        cpus: cores that a session of it may take; 0: as the settings say.
        gpus: GPUs that a session of it has.
        by: the person whose own profile it is; empty: it is one of the catalog.
        packages: names of the Python packages that its bundle asks for.
    """

    profile: str
    release: str
    text: str
    image: Image | None = None
    why_not: str = ""
    memory: int = 0
    cpus: float = 0.0
    gpus: int = 0
    by: str = ""
    packages: tuple[str, ...] = ()

    @property
    def contents(self) -> str:
        """Its packages, for people: the first of them."""
        return some(self.packages, _MOST_NAMED)

    @property
    def size(self) -> str:
        """How much is downloaded for it, for people."""
        return gigabytes(self.image.size) if self.image else ""

    def age(self, at: datetime) -> str:
        """How old its image is, for people."""
        if not self.image or not self.image.built:
            return ""
        days = (at - self.image.built).days
        return "of today" if days < 1 else f"{days} day{'s' if days > 1 else ''} old"


def judge(profile: Profile, image: Image | Refusal | None, free_gpus: int | None) -> Offer:
    """The offer of a profile whose newest image is known. Pure but for reading what it asks for."""
    text = f"{profile.ide.display}, {profile.bundle.display}, {profile.base.display}"
    published = image if isinstance(image, Image) else None
    takes = profile.resources.memory or 0, profile.resources.cpus or 0.0, profile.resources.gpus
    why_not, packages = _why_not(profile, image, free_gpus), libraries(profile.bundle, profile.python)
    return Offer(profile.stem, profile.release, text, published, why_not, *takes, packages=packages)


def without_image(image: Image | Refusal | None) -> str:
    """Why no session can be made of an image; empty: one can. Pure."""
    if image is None:
        return "There is no image of it yet."
    return f"Its image does not count: {image.why}" if isinstance(image, Refusal) else ""


def _why_not(profile: Profile, image: Image | Refusal | None, free_gpus: int | None) -> str:
    if why := without_image(image):
        return why
    if free_gpus is not None and profile.resources.gpus > free_gpus:
        return f"It needs {profile.resources.gpus} GPUs, and {free_gpus} are free."
    return ""


def supported(catalog: Catalog) -> tuple[Profile, ...]:
    """The profiles of all releases that are supported today, newest release first. Pure but for the date."""
    releases = sorted(catalog.releases.values(), key=lambda release: release.name, reverse=True)
    return tuple(profile for release in releases if release.is_supported(now().date()) for profile in release.profiles)


def offers(settings: Settings) -> tuple[Offer, ...]:
    """All offers of now.

    Raises:
        RefitError: the catalog has mistakes, or the registry doesn't answer.
    """
    profiles = supported(load.load_catalog(settings.catalog))
    database, registry = open_database(settings.database), Registry(settings)
    images = newest_images([(profile.stem, profile.release) for profile in profiles], registry, settings, database)
    free, _ = engines.gpus(settings, database).free()
    return tuple(judge(profile, images.get((profile.stem, profile.release)), free) for profile in profiles)


def newest_images(
    profiles: Sequence[tuple[str, str]], registry: Registry, settings: Settings, database: Engine
) -> dict[tuple[str, str], Image | Refusal]:
    """The newest image of each profile, by stem and release; those without any are left out.

    Raises:
        RefitError: the registry doesn't answer.
    """
    publications = Publications(settings, database, registry)
    current = publications.current(profiles)
    dates = publications.dates([digest for digest in current.values() if isinstance(digest, str)])
    images = {name: _image(registry, digest, dates) for name, digest in current.items()}
    return {name: image for name, image in images.items() if image is not None}


def _image(registry: Registry, digest: str | Refusal | None, dates: Mapping[str, datetime]) -> Image | Refusal | None:
    if digest is None or isinstance(digest, Refusal):
        return digest
    manifest = registry.manifest(registry.repository, digest, recall=True)
    size = sum(int(layer["size"]) for layer in manifest.document["layers"])
    return Image(size, dates.get(digest))


def form(offered: Iterable[Offer], limits: str = "", sessions: Collection[str] = ()) -> str:
    """The form as HTML; available profiles come first. Pure but for the date.

    Args:
        offered: the profiles.
        limits: a person's limits and their use, for them; empty: nothing is limited.
        sessions: those whose home the new one can begin with a copy of.
    """
    ordered = sorted(offered, key=lambda offer: bool(offer.why_not))
    page: str = _FORM.render(offers=ordered, limits=limits, sessions=sorted(sessions), now=now())
    return page


def read(sent: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The fields of the form, as options of a server. Pure.

    Raises:
        RefitError: it is not what the form would send.
    """
    release, slash, profile = (list(sent.get("profile", [])) or [""])[0].partition("/")
    if not (release and slash and profile):
        raise RefitError("No profile was chosen.", hint="choose one on the form.")
    copy_of = (list(sent.get("copy_of", [])) or [""])[0]
    return {"release": release, "profile": profile, **({"copy_of": copy_of} if copy_of else {})}
