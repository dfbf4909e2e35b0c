"""Show what a profile's image is made of, as text that needs no Refit. Nothing is started for it."""

from __future__ import annotations

from pathlib import Path

from flows.catalog import load
from flows.catalog.model import Catalog, Profile
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images import containerfile_export, stages
from flows.images.build import Builder
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.releases.plan import assemble, chosen


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
    recipes = load.load_catalog(catalog or settings.catalog)
    [profile_there] = chosen(recipes, release, [profile])
    return show(profile_there, recipes, settings)


def show(profile: Profile, recipes: Catalog, settings: Settings, *, unbuilt: bool = False) -> str:
    """The same of a profile that may stand in no release file yet; raises as `show_profile`.

    With `unbuilt`, a base that isn't in the registry is called by its name alone, so that a person can read what would
    be built; nothing can be built of that text.
    """
    chains, problems = assemble([profile], recipes, settings)
    for problem in problems.values():
        raise problem
    chain = chains[profile.stem]
    registry = Registry(settings)
    try:
        base = Builder(settings, registry).plan(stages.join(chains)).steps[chain[0].name].digest
    except RegistryError:
        if not unbuilt:
            raise
        base = None
    if base is None and not unbuilt:
        raise RefitError(
            f"{profile.stem!r} can't be shown: its base {chain[0].name!r} is not in the registry {registry.host}.",
            why="It was never built, or a new version of it is due.",
            hint=f"run `refit build {profile.release} --profile {profile.stem}`.",
        )
    base_name = f"{registry.host}/{registry.stages}@{base}" if base else chain[0].name
    return containerfile_export.containerfile(profile.stem, profile.release, chain, base_name, secure=registry.secure)
