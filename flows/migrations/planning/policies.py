"""The migration policies of each profile and release."""

from __future__ import annotations

from collections.abc import Mapping

from flows.catalog.load import load_catalog
from flows.core.settings import Settings
from flows.core.settings.policy import SessionPolicy
from flows.migrations.planning.rollout import ImageKey


def policies(settings: Settings) -> Mapping[ImageKey, SessionPolicy]:
    """Profile and release → the policy of its sessions; for those that are missing, that of the settings holds.

    Raises:
        Mistakes: the catalog can't be read.
    """
    releases = load_catalog(settings.catalog).releases.values()
    profiles = [profile for release in releases for profile in release.profiles]
    return {(p.stem, p.release): p.migration.over(settings.migration.sessions) for p in profiles}
