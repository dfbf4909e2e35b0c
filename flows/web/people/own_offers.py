"""Offers of people's own profiles: to their owners, and to members of the groups that they are offered to."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Collection

from flows.catalog import load
from flows.catalog.model import Catalog
from flows.core.database import open_database
from flows.core.formatting import on_a_line
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.publishing.own_build_requests import BuildRequests
from flows.publishing.own_profiles import OfferedTo, OwnProfile, OwnProfiles
from flows.publishing.signatures import Refusal
from flows.sessions.people.entitlements import Rights
from flows.web.people.offers import Image, Offer, newest_images, without_image

logger = logging.getLogger("refit.authorizer")

_LONGEST = 200  # characters of a text that a person wrote


def not_to_offer(own: OwnProfile, groups: Collection[str], mine: Collection[str], *, operator: bool) -> tuple[str, ...]:
    """The groups to which somebody may not offer a profile of theirs. Pure.

    Args:
        own: the profile; groups to which it is offered already may stay, for an operator may have done that.
        groups: those that it is to be offered to.
        mine: the groups of its owner.
        operator: whether they administer the Hub.
    """
    return () if operator else tuple(sorted({*groups} - {*own.offered} - {*mine}))


def ended(offer: OfferedTo, rights: Rights) -> tuple[str, ...]:
    """The groups to which a profile isn't offered any more, for its owner has left them. Pure.

    People offer to groups as their members. An operator's offer stays, and so do those for somebody without an account.
    """
    account = (rights.accounts or {}).get(offer.owner)
    return tuple(sorted({*offer.groups} - {*offer.vouched} - account.groups)) if account else ()


def end_over(records: OwnProfiles, rights: Rights, gone: Collection[str]) -> None:
    """End the offers to groups that their owners have left, and those of and to people who have no account any more.

    Args:
        records: of the profiles.
        rights: by the Hub, now.
        gone: people whose accounts were removed.
    """
    for person in gone:
        records.leave(person)
        BuildRequests(records.database).leave(person)
    for offer in records.offered():
        if (groups := ended(offer, rights)) and (ended_for := records.end_offers(offer.bundle, offer.owner, groups)):
            logger.warning("%s is offered no longer to %s", offer.bundle, ", ".join(map(on_a_line, ended_for)))


def offers_to(settings: Settings, person: str, groups: Collection[str]) -> tuple[Offer, ...]:
    """The offers of people's own profiles to somebody, their own first.

    Raises:
        RefitError: the catalog has mistakes, or the registry doesn't answer.
    """
    database = open_database(settings.database)
    mine = [own for own in OwnProfiles(database).all() if own.may_be_started_by(person, groups)]
    if not mine:
        return ()
    catalog = load.load_catalog(settings.catalog)
    mine = [own for own in mine if not has(catalog, own.profile)]
    names = [(own.profile, own.release) for own in mine]
    images = newest_images(names, Registry(settings), settings, database)
    ordered = sorted(mine, key=lambda own: (own.owner != person, own.profile))
    return tuple(offer_of(own, images.get((own.profile, own.release)), catalog) for own in ordered)


def has(catalog: Catalog, profile: str) -> bool:
    """Whether the catalog has a profile of this name: it comes before that of a person. Pure."""
    return any(one.stem == profile for release in catalog.releases.values() for one in release.profiles)


def offer_of(own: OwnProfile, image: Image | Refusal | None, catalog: Catalog) -> Offer:
    """The offer of a profile whose newest image is known. Pure."""
    published = image if isinstance(image, Image) else None
    return Offer(
        own.profile,
        own.release,
        text_of(own, catalog),
        published,
        without_image(image),
        by=own.owner,
        packages=packages_of(own),
    )


def packages_of(own: OwnProfile) -> tuple[str, ...]:
    """The names of the Python packages that its recipe asks for. Pure."""
    pipfiles = [text for path, text in sorted(own.files.items()) if path.endswith("/Pipfile")]
    packages = [tomllib.loads(text.decode()).get("packages", {}) for text in pipfiles[-1:]]
    return tuple(sorted(on_a_line(name) for names in packages for name in names))


def text_of(own: OwnProfile, catalog: Catalog) -> str:
    """The text of the form, by its owner's word; parts that the catalog lacks are called by their names. Pure."""
    ide, _, system, _ = own.profile.split("-")
    shown = on_a_line(own.files["display.txt"].decode(errors="replace").strip())[:_LONGEST]
    opens = catalog.ides[ide].display if ide in catalog.ides else ide
    return f"{opens}, {shown}, {catalog.bases[system].display if system in catalog.bases else system}"
