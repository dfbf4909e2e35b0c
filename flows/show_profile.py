"""Show what a profile's image is made of, as text that needs no Refit. Nothing is started for it."""

from __future__ import annotations

from pathlib import Path

from flows.errors import RefitError
from flows.images import plain
from flows.images.registry import Registry
from flows.plan_release import plan_release
from flows.settings import Settings


def show_profile(profile: str, release: str, settings: Settings, catalog: Path | None = None) -> str:
    """The image of a profile as one plain Containerfile (see `images.plain`).

    Args:
        profile: stem of its tags.
        release: name of the release.
        settings: where the registry is.
        catalog: folder of the catalog; none means the one of the settings.

    Raises:
        RefitError: there is no such profile, its base was never built, or the registry or the mirror doesn't answer.
    """
    planned = plan_release(release, [profile], catalog, settings)
    chain = planned.graph.ancestry(planned.graph.tops[profile])
    registry = Registry(settings)
    base = planned.plan.steps[chain[0].name].digest
    if base is None:
        raise RefitError(
            f"{profile!r} can't be shown: its base {chain[0].name!r} is not in the registry {registry.host}.",
            why="It was never built, or a new version of it is due.",
            fix=f"run `refit build {release} --profile {profile}`.",
        )
    return plain.containerfile(
        profile, release, chain, f"{registry.host}/{registry.stages}@{base}", secure=registry.secure
    )
