"""Names of profiles never vanish: a retired one leads to its successor, one of an old release to a newer. Pure."""

from __future__ import annotations

from datetime import date

from flows.catalog.load import profile
from flows.catalog.model import Catalog, Profile, Release
from flows.core.errors import RefitError


def current(catalog: Catalog, release: str, stem: str, on: date) -> Profile:
    """The profile that stands behind a name on a day (UTC): that one, or what has taken its place.

    It is looked for in the release that was named, if that is supported, then in newer ones, the oldest of them first:
    as little as possible changes for somebody who asks by an old name.

    Raises:
        UnknownName: there is none, and no release is supported that could tell.
        RefitError: its release is over, and none that is supported has it or names its successor.
    """
    supported = sorted(file.name for file in catalog.releases.values() if file.is_supported(on))
    for name in (candidate for candidate in supported if candidate >= release):
        if (successor := _in(catalog.releases[name], stem)) is not None:
            return successor
    if release not in catalog.releases or release in supported:
        return profile(catalog, release, stem)  # which says what there is
    raise RefitError(
        f"Release {release} is not supported any more.",
        why=f"No newer one has {stem}, or names its successor.",
        hint="choose another profile; the catalog's maintainer names a successor by `retired` in a release's file.",
    )


def _in(release: Release, stem: str) -> Profile | None:
    """The profile of this stem, or its successor; none: the release has neither."""
    profiles = {profile.stem: profile for profile in release.profiles}
    return profiles.get(stem) or profiles.get(release.retired.get(stem, ""))
