"""Lock the Python requirements of the bundles of a release, each inside its target base's container."""

import datetime
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from prefect import flow, runtime, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows.catalog import load
from flows.catalog.model import Base, Bundle, Catalog, Release
from flows.catalog.pins import expired, first_lock_file
from flows.core.atomic_files import write_whole
from flows.core.database import now, open_database
from flows.core.documents import Mistake, Mistakes, text_of
from flows.core.errors import RefitError, UnknownName
from flows.core.formatting import as_cells
from flows.core.programs import command
from flows.core.progress import reported
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.images.build import Builder
from flows.images.builder import locking_image
from flows.images.builder.build_lock import building
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.locks import freshness, make_python_lock, policy, python_lockfile, vulnerabilities
from flows.locks.freshness import LockLook
from flows.locks.make_python_lock import Unresolvable
from flows.locks.policy import Bounds
from flows.locks.python_lockfile import LockChange
from flows.locks.vulnerabilities import Record, Unasked, Vulnerability

NOTHING = LockChange({}, {}, {})

logger = logging.getLogger("refit.lock")


@dataclass(frozen=True)
class Lock:
    """A bundle's lock for one Python on one base.

    Attributes:
        bundle, base, python: the bundle, and where it is installed.
        change: the run's changes in it.
        held: packages that would have moved as well, but may not in its release.
        unmended: known vulnerabilities that only such a move would mend.
        from_folders: packages that only the folders of wheels of this machine's settings were known to have.
    """

    bundle: str
    base: str
    python: str
    change: LockChange
    held: LockChange = NOTHING
    unmended: tuple[Vulnerability, ...] = ()
    from_folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """A lock to make: a bundle for one Python, on one base, within the bounds and the cutoff of its release."""

    bundle: Bundle
    base: Base
    python: str
    bounds: Bounds | None = None
    cutoff: datetime.date | None = None

    @property
    def folder(self) -> Path:
        """Where Pipfile and lock are."""
        return self.bundle.pythons[self.python]

    @property
    def terms(self) -> str:
        """The version rules of its release: a lock that was made under other terms may come out otherwise."""
        reach, waivers = (self.bounds.reach, self.bounds.waivers) if self.bounds else ({}, ())
        exceptions = sorted((waiver.package, waiver.range) for waiver in waivers)
        return f"reach {sorted(reach.items())}, exceptions {exceptions}, cutoff {self.cutoff}"

    def __str__(self) -> str:
        return f"{self.bundle.name} {self.python}"


@task(task_run_name="locker on {base.name}", cache_policy=NO_CACHE)
def build_locker(base: Base, python_name: str, recipes: Catalog, settings: Settings) -> str:
    """Find or build the image in which locks for a base are made; returns its digest."""
    builder = Builder(settings, Registry(settings))
    foundation = Assembler(recipes, partial(freshness.resolve, settings=settings)).foundation(base, python_name)
    return builder.build(
        locking_image.stage(foundation, python_name, recipes.root), builder.build(foundation, None)
    ).digest


@task(task_run_name="lock {target.bundle.name} for {target.python}", cache_policy=NO_CACHE)
def lock_bundle(target: Target, image: str, look: LockLook, settings: Settings, thorough: bool = False) -> Lock:
    """Resolve all categories of a bundle's Pipfile to exact versions with hashes, and export them.

    Args:
        target: the bundle to lock.
        image: digest of the locker of its base.
        look: the state of the indexes just before.
        settings: where the registry is, and what locks need.
        thorough: find out as well what its release holds back, which takes as long again.
    """
    name = f"{target.bundle.name}-{target.python}"
    held = NOTHING
    with reported(f"lock {target}"), command.logged(settings.folder("logs", "locks") / f"{name}.log"):
        change = make_python_lock.lock(target.folder, image, settings, target.bounds, target.cutoff)
        if thorough and target.bounds:
            # A set that can't be resolved without bounds would not have moved.
            with suppress(Unresolvable):
                held = _held(target.bounds, target, image, settings)
    freshness.keep(look, settings)
    alone = make_python_lock.from_folders_alone(target.folder, settings.wheel_folders)
    return Lock(target.bundle.name, target.base.name, target.python, change, held, from_folders=alone)


def _held(bounds: Bounds, target: Target, image: str, settings: Settings) -> LockChange:
    free = make_python_lock.without_bounds(target.folder, image, settings, target.cutoff)
    return policy.held(bounds, python_lockfile.locked(target.folder), free)


def _name() -> str:
    return f"lock {runtime.flow_run.parameters.get('release') or 'the newest release'}"


@flow(name="lock-requirements", flow_run_name=_name)
def lock_requirements(
    release: str = "", bundles: list[str] | None = None, catalog: Path | None = None
) -> tuple[Lock, ...]:
    """Lock the Python requirements of the bundles of a release.

    Args:
        release: Name of the release, e.g. 2026a. Empty means the newest.
        bundles: Bundles to lock, e.g. minimal. Empty means all of the release.
        catalog: Folder of the catalog. Empty means the one of the settings.
    """
    settings = load_settings()
    recipes = load.load_catalog(catalog or settings.catalog)
    release = release or load.newest_release(recipes.root)
    chosen = load.release(recipes, release)
    refuse_expired(chosen, recipes.root, now().date())
    chosen_targets = targets([chosen], bundles)
    with building(open_database(settings.database)), command.terminating_children():
        looks = freshness.look_at_locks({target.folder: target.terms for target in chosen_targets}, settings)
        outcomes = carry_out(chosen_targets, looks, recipes, settings, thorough=True)
    write_down(chosen, chosen_targets, outcomes, recipes.root)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    done = [outcome for outcome in outcomes if isinstance(outcome, Lock)]
    locks = tuple(
        replace(lock, unmended=bad) for lock, bad in zip(done, unmended(chosen_targets, settings), strict=True)
    )
    _show(locks, release)
    return locks


def check_locks(release: str, bundles: list[str] | None = None, catalog: Path | None = None) -> tuple[Target, ...]:
    """Hold each lock of a release against its Pipfiles, its exports and the release's word. No index is asked.

    Raises:
        Mistakes: some of them don't fit; all mistakes are named.
        Forbidden: a package is where its release forbids it.
    """
    recipes = load.load_catalog(catalog or load_settings().catalog)
    chosen = load.release(recipes, release)
    refuse_expired(chosen, recipes.root, now().date())
    chosen_targets = targets([chosen], bundles)
    mistakes: list[Mistake] = []
    for target in chosen_targets:
        try:
            python_lockfile.verify(target.folder)
        except Mistakes as error:
            mistakes.extend(error.mistakes)
    if mistakes:
        raise Mistakes(mistakes)
    for target in chosen_targets:
        if target.bounds:
            policy.check(target.bounds, python_lockfile.locked(target.folder))
    return tuple(chosen_targets)


def carry_out(
    chosen: Sequence[Target],
    looks: Mapping[Path, LockLook],
    recipes: Catalog,
    settings: Settings,
    *,
    thorough: bool = False,
) -> list[Lock | BaseException]:
    """Lock all at once, each in its base; returns the result of each, in their order. One that fails stops no other.

    Args:
        chosen: the bundles to lock.
        looks: folder → what was seen of the indexes just before.
        recipes: the catalog that they are in.
        settings: where the registry is, and what locks need.
        thorough: as in `lock_bundle`.
    """
    lockers = {(t.base.name, t.python): build_locker.submit(t.base, t.python, recipes, settings) for t in chosen}
    images = {key: future.result(raise_on_failure=False) for key, future in lockers.items()}
    futures = [
        image
        if isinstance(image := images[target.base.name, target.python], BaseException)
        else lock_bundle.submit(target, image, looks[target.folder], settings, thorough)
        for target in chosen
    ]
    return [f if isinstance(f, BaseException) else f.result(raise_on_failure=False) for f in futures]


def unmended(asked: Sequence[Target], settings: Settings) -> list[tuple[Vulnerability, ...]]:
    """For each lock: its known vulnerabilities that only a move would mend that its release forbids.

    Raises:
        Mistakes: the file that the settings name can't be read.
    """
    nowhere = not settings.osv_file and not settings.osv_service
    if nowhere or not any(target.bounds for target in asked):
        return [() for _ in asked]
    packages = [python_lockfile.locked(target.folder) for target in asked]
    if settings.osv_file:
        records = vulnerabilities.read(settings.osv_file, {name for locked in packages for name in locked})
    else:
        records = _from_service({package for locked in packages for package in locked.items()}, settings)
    return [
        tuple(vulnerabilities.unmended(vulnerabilities.affecting(records, locked), target.bounds))
        if target.bounds
        else ()
        for target, locked in zip(asked, packages, strict=True)
    ]


def _from_service(packages: Collection[tuple[str, str]], settings: Settings) -> tuple[Record, ...]:
    """The records of the service; a lock is made all the same where it can't be asked."""
    try:
        return vulnerabilities.ask(packages, settings)
    except Unasked as error:
        logger.warning("%s", " ".join(str(error).split()))
        return ()


def targets(releases: Iterable[Release], bundles: Sequence[str] | None = None) -> list[Target]:
    """Each bundle and Python of some releases once that has a Pipfile.

    Raises:
        UnknownName: none of them ships such a bundle.
        RefitError: two of them hold the same lock.
    """
    shipped = [(release, profile) for release in releases for profile in release.profiles]
    bundles_shipped = {profile.bundle.name for _, profile in shipped}
    for name in bundles or ():
        if name not in bundles_shipped:
            raise UnknownName("bundle", name, bundles_shipped)
    chosen: dict[tuple[str, str], Target] = {}
    for release, p in shipped:
        if p.python in p.bundle.pythons and (not bundles or p.bundle.name in bundles):
            target = Target(p.bundle, p.base, p.python, policy.bounds(release, p.bundle.name, p.python), release.cutoff)
            chosen[p.bundle.name, p.python] = _stricter(chosen.get((p.bundle.name, p.python), target), target)
    return list(chosen.values())


def _stricter(one: Target, other: Target) -> Target:
    """Of two targets with one lock, the one that has bounds, with the earlier of their cutoffs."""
    if one.bounds and other.bounds and one.bounds != other.bounds:
        raise RefitError(
            f"Releases {one.bounds.release} and {other.bounds.release} both hold the lock of {one}.",
            why="One lock can't begin at two places.",
            hint="give each release a branch of its own: `refit release cut`.",
        )
    cutoffs = [target.cutoff for target in (one, other) if target.cutoff]
    return replace(one if one.bounds else other, cutoff=min(cutoffs, default=None))


def refuse_expired(release: Release, root: Path, on: datetime.date) -> None:
    """Refuse a release that excepts a package longer than it meant to.

    Raises:
        Mistakes: the exceptions that no longer hold on that day (UTC), with file and line.
    """
    file = root / "releases" / f"{release.name}.yaml"
    if release.pins.waivers and (mistakes := list(expired(file, text_of(file), release.pins.waivers, on))):
        raise Mistakes(mistakes)


def write_down(release: Release, asked: Sequence[Target], outcomes: Sequence[Lock | BaseException], root: Path) -> None:
    """Add to the first lock of a release that is cut what it doesn't have yet: all of it at first, then new bundles."""
    pins, new = release.pins, dict[str, dict[str, dict[str, dict[str, str]]]]()
    shipped = {(profile.bundle.name, profile.python) for profile in release.profiles}
    for target, outcome in zip(asked, outcomes, strict=True):
        key = (target.bundle.name, target.python)
        if key in shipped and isinstance(outcome, Lock) and not pins.began_with(*key):
            new.setdefault(target.bundle.name, {})[target.python] = python_lockfile.by_category(target.folder)
    if pins.first is None or not new:
        return
    first = pins.first.model_dump()["bundles"]
    bundles = {name: {**first.get(name, {}), **new.get(name, {})} for name in {*first, *new}}
    content = json.dumps({"bundles": bundles}, indent=1, sort_keys=True) + "\n"
    write_whole(first_lock_file(root, release.name), content)


def _show(locks: tuple[Lock, ...], release: str) -> None:
    create_table_artifact(
        key=f"locks-{release}",
        description=f"Locks of release {release}",
        table=as_cells(
            [
                {
                    "bundle": lock.bundle,
                    "python": lock.python,
                    "change": str(lock.change),
                    "held back": str(lock.held) if lock.held else "",
                    "vulnerabilities": "\n".join(map(str, lock.unmended)),
                }
                for lock in locks
            ]
        ),
    )
