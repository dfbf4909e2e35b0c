"""Plan the images of a release: which stages are there, which would be built, and why. Nothing is started for it."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from flows.catalog import load, tree
from flows.catalog.model import Base, Catalog, Download, Profile
from flows.catalog.pins import expired
from flows.core.database import now
from flows.core.documents import Mistake, text_of
from flows.core.errors import RefitError
from flows.core.progress import reported
from flows.core.settings import Settings
from flows.images import stages
from flows.images.build import Builder
from flows.images.builder.fetching import unreachable
from flows.images.plan import Action, Plan
from flows.images.recipe import ENVIRONMENT, Assembler
from flows.images.registry import Registry
from flows.images.stages import Graph, Stage
from flows.locks import freshness, make_python_lock, policy, python_lockfile
from flows.locks.pipfile import read_pipfile

_AT_ONCE = len(os.sched_getaffinity(0))  # apt computes for most of its time
_MADE = (Action.build, Action.wait)
# Advice for a profile whose files can't be had on this machine.
ELSEWHERE = (
    "build it on a machine that reaches this address, into the same registry; the wheel of a package may also lie in a "
    "folder of `wheel_folders`."
)


@dataclass(frozen=True)
class ReleasePlan:
    """The profiles that are wanted, the graph of their stages, and what would be done to each.

    Two kinds of profiles are in nothing else here: `problems` has those that can't be planned, `unbuildable` those that
    this machine would have to build and can't, because something that they take can't be had: stem → why. Where other
    machines build, which may have ways of their own, the latter are `doubtful` instead, and tried. `overdue` are the
    release's exceptions that no longer hold: they stop locks, not builds from those that there are.
    """

    profiles: tuple[Profile, ...]
    graph: Graph
    plan: Plan
    problems: Mapping[str, str] = field(default_factory=dict)
    unbuildable: Mapping[str, str] = field(default_factory=dict)
    doubtful: Mapping[str, str] = field(default_factory=dict)
    overdue: tuple[Mistake, ...] = ()


class NotBuildable(RefitError):
    """Some profiles can't be built here; each is told with what it lacks."""

    def __init__(self, planned: ReleasePlan) -> None:
        problems, buildable = {**planned.problems, **planned.unbuildable}, len(planned.profiles)
        super().__init__(
            f"{len(problems)} of {len(problems) + buildable} profiles can't be built here.",
            why="\n".join(f"{stem}: {why}" for stem, why in problems.items()),
            hint=ELSEWHERE if planned.unbuildable else "",
        )


def read_catalog(folder: Path) -> Catalog:
    """Read a catalog, and show that it is read.

    Raises:
        NoCatalog: the folder is none.
        Mistakes: it has mistakes.
    """
    tree.require(folder)
    with reported("catalog"):
        return load.load_catalog(folder)


def plan_release(
    release: str,
    profiles: Sequence[Profile],
    recipes: Catalog,
    settings: Settings,
    registry: Registry,
    *,
    thorough: bool = False,
    tolerant: bool = False,
) -> ReleasePlan:
    """Plan a release, or some profiles of it.

    Args:
        profiles: those of `release` (its name), or some of them; see `chosen`.
        recipes: the catalog that they are of.
        thorough: as in `Builder.plan`.
        tolerant: plan what can be planned; without it, the first problem ends it.

    Raises:
        RefitError: the registry or the mirror doesn't answer.
    """
    with reported("registry"):
        registry.ping()  # without a registry, nothing that is resolved is of use
    chains, problems = assemble(profiles, recipes, settings)
    if problems and not tolerant:
        raise next(iter(problems.values()))
    problem = {stem: str(error) for stem, error in problems.items()}
    builder, graph = Builder(settings, registry), stages.join(chains)
    with reported("stages", "which of them are in the registry"):
        plan = builder.plan(graph, thorough=thorough)
    without = lacking([profile for profile in profiles if profile.stem in chains], graph, plan, settings)
    why = {stem: error.why for stem, error in without.items()}
    if without and not settings.builders:
        if not tolerant:
            raise next(iter(without.values()))
        graph = stages.join({stem: chain for stem, chain in chains.items() if stem not in without})
        plan = builder.plan(graph, thorough=thorough)
    whole = tuple(profile for profile in profiles if profile.stem in graph.tops)
    unbuildable, doubtful = ({}, why) if settings.builders else (why, {})
    return ReleasePlan(whole, graph, plan, problem, unbuildable, doubtful, _overdue(recipes, release))


def _overdue(recipes: Catalog, release: str) -> tuple[Mistake, ...]:
    waivers, file = recipes.releases[release].pins.waivers, recipes.root / "releases" / f"{release}.yaml"
    return tuple(expired(file, text_of(file), waivers, now().date())) if waivers else ()


def due_locks(planned: ReleasePlan, settings: Settings) -> tuple[str, ...]:
    """The Python locks that a night would make anew whatever the indexes say, by bundle and Python; asks nobody."""
    pairs = [(profile.bundle, profile.python) for profile in planned.profiles]
    names = {bundle.pythons[python]: f"{bundle.name} {python}" for bundle, python in pairs}
    return tuple(names[folder] for folder in freshness.due(names, settings))


def lacking(profiles: Sequence[Profile], graph: Graph, plan: Plan, settings: Settings) -> dict[str, RefitError]:
    """The profiles that would have to be built, and can't be here: something that they take can't be had."""
    folders = make_python_lock.in_folders(settings.wheel_folders)
    downloads = {profile.stem: _downloads(profile, plan) for profile in profiles}
    needed = {
        profile.stem: [
            *(download.url for download in downloads[profile.stem]),
            *_pages(profile, graph, plan, folders),
        ]
        for profile in profiles
    }
    no_way = {
        **unreachable(sorted({url for urls in needed.values() for url in urls}), settings),
        **{
            download.url: why
            for several in downloads.values()
            for download in several
            if (why := foreign(download.machine))
        },
    }
    return {
        stem: RefitError(
            "Something that its recipe takes can't be had here.",
            why="\n".join(f"{url}: {no_way[url]}" for url in missing),
            hint=ELSEWHERE,
        )
        for stem, urls in needed.items()
        if (missing := [url for url in urls if url in no_way])
    }


def _downloads(profile: Profile, plan: Plan) -> list[Download]:
    """The files that its IDE takes from the internet, if that is to be built."""
    to_build = plan.steps[profile.stem].action in _MADE
    return [*profile.ide.config.downloads.values()] if to_build else []


def foreign(*machines: str) -> str:
    """Why what is for these machines is nothing for this one; empty: it is. Without a name it is for all."""
    own = platform.machine()
    return "" if {own, ""} & {*machines} else f"it is for {' or '.join(machines)}, and this machine is {own}"


def _pages(profile: Profile, graph: Graph, plan: Plan, folders: Collection[tuple[str, str]]) -> Iterator[str]:
    """The pages of packages to be installed that come from another index than the first, and lie in no folder here."""
    stages = [stage for stage in graph.ancestry(profile.stem) if plan.steps[stage.name].action in _MADE]
    installing = [stage for stage in stages if stage.writes == (ENVIRONMENT,)]
    if not installing:
        return
    pages = read_pipfile(profile.bundle.pythons[profile.python] / "Pipfile").elsewhere()
    for versions in (python_lockfile.versions(stage.requirements) for stage in installing):
        yield from (page for name, page in pages.items() if name in versions and (name, versions[name]) not in folders)


def chosen(recipes: Catalog, release: str, profiles: Sequence[str]) -> tuple[Profile, ...]:
    """The profiles of a release with these stems, or all.

    Raises:
        UnknownName: there is no such release or profile.
    """
    shipped = load.release(recipes, release).profiles
    return tuple(load.profile(recipes, release, stem) for stem in profiles) if profiles else shipped


class _Resolver:
    """Resolves sets of system packages, each once; those that are known beforehand at the same time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[tuple[str, ...], tuple[str, ...] | RefitError] = {}

    def __call__(self, base: Base) -> tuple[str, ...]:
        """The exact packages of a base; raises as `freshness.resolve`."""
        packages = self._found.get(_asked(base)) or freshness.resolve(base, self._settings)
        if isinstance(packages, RefitError):
            raise packages
        return packages

    def prepare(self, assembler: Assembler, profiles: Iterable[Profile]) -> None:
        """Resolve what the stages of these profiles need; a lack is said when the missing part is asked for."""
        sets: list[list[tuple[str, Base]]] = []
        for profile in profiles:
            with suppress(RefitError):  # assembling says it
                sets.append([*assembler.system_sets(profile)])
        self._resolve(ground for ground, *_ in sets)
        # A mirror that doesn't answer is waited for once.
        self._resolve(
            base
            for ground, *more in sets
            if not isinstance(self._found[_asked(ground[1])], RefitError)
            for base in more
        )

    def _resolve(self, sets: Iterable[tuple[str, Base]]) -> None:
        names = {_asked(base): (name, base) for name, base in sets if _asked(base) not in self._found}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            begun = {key: pool.submit(copy_context().run, self._try, name, base) for key, (name, base) in names.items()}
            self._found |= {key: future.result() for key, future in begun.items()}

    def _try(self, name: str, base: Base) -> tuple[str, ...] | RefitError:
        try:
            with reported(f"packages of {name}"):
                return freshness.resolve(base, self._settings)
        except RefitError as error:
            return error


def _asked(base: Base) -> tuple[str, ...]:
    return (base.name, *base.config.repositories, *base.packages)


def assemble(
    profiles: Sequence[Profile], recipes: Catalog, settings: Settings
) -> tuple[dict[str, tuple[Stage, ...]], dict[str, RefitError]]:
    """Resolve system packages and render all Containerfiles: stem → stages, base first, or why there are none."""
    resolver = _Resolver(settings)
    assembler = Assembler(recipes, resolver, settings.installer)
    resolver.prepare(assembler, profiles)

    @cache
    def trouble(os: str, python: str) -> RefitError | None:
        """Why nothing can stand on a base: a mirror that doesn't answer is waited for once, not for each profile."""
        try:
            assembler.foundation(recipes.bases[os], python)
        except RefitError as error:
            return error
        return None

    @cache
    def hold(release: str, bundle: str, python_name: str) -> None:
        """Refuse a lock that its release forbids, however it came here: by a merge, for instance."""
        if bounds := policy.bounds(recipes.releases[release], bundle, python_name):
            policy.check(bounds, python_lockfile.locked(recipes.bundles[bundle].pythons[python_name]))

    chains: dict[str, tuple[Stage, ...]] = {}
    problems: dict[str, RefitError] = {}
    for profile in profiles:
        try:
            if error := trouble(profile.base.name, profile.python):
                raise error
            hold(profile.release, profile.bundle.name, profile.python)
            if recipes.cuda and profile.cuda_level and (why := foreign(*recipes.cuda.machines)):
                raise RefitError("Its CUDA can't be had for this machine.", why=why, hint="build it on such a machine.")
            chains[profile.stem] = assembler.chain(profile)
        except RefitError as error:
            problems[profile.stem] = error
    return chains, problems
