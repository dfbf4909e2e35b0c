"""Plan the images of a release: which stages are there, which would be built, and why. Nothing is started for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flows.catalog import load
from flows.catalog.model import Catalog, Profile
from flows.images import stages
from flows.images.build import Builder
from flows.images.plan import Plan
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Graph
from flows.locks import freshness
from flows.settings import Settings


@dataclass(frozen=True)
class ReleasePlan:
    """The profiles that are wanted, the graph of their stages, and what would be done to each."""

    profiles: tuple[Profile, ...]
    graph: Graph
    plan: Plan


def plan_release(
    release: str, profiles: Sequence[str], catalog: Path | None, settings: Settings, *, thorough: bool = False
) -> ReleasePlan:
    """Plan a release, or some profiles of it.

    Args:
        release: its name, e.g. `2026a`.
        profiles: stems of their tags; none means all of the release.
        catalog: folder of the catalog; none means the one of the settings.
        settings: where the registry is.
        thorough: as in `Builder.plan`.

    Raises:
        RefitError: the catalog has mistakes, or the registry or the mirror doesn't answer.
    """
    recipes = load.load_catalog(catalog or settings.catalog)
    wanted = chosen(recipes, release, profiles)
    graph = assemble(wanted, recipes, settings)
    return ReleasePlan(wanted, graph, Builder(settings, Registry(settings)).plan(graph, thorough=thorough))


def chosen(recipes: Catalog, release: str, profiles: Sequence[str]) -> tuple[Profile, ...]:
    """The profiles of a release with these stems, or all.

    Raises:
        UnknownName: there is no such release or profile.
    """
    shipped = load.release(recipes, release).profiles
    return tuple(load.profile(recipes, release, stem) for stem in profiles) if profiles else shipped


def assemble(profiles: Sequence[Profile], recipes: Catalog, settings: Settings) -> Graph:
    """Resolve system packages, render all Containerfiles, and join them into one graph of distinct stages."""
    assembler = Assembler(recipes, partial(freshness.resolve, settings=settings), settings.installer)
    return stages.join({profile.stem: assembler.chain(profile) for profile in profiles})
