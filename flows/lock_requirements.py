"""Lock the Python requirements of the bundles of a release, each inside its target base's container."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows import command
from flows.catalog import load
from flows.catalog.model import Base, Bundle, Catalog, Profile
from flows.database import open_database
from flows.errors import UnknownName
from flows.images import locker
from flows.images.build import Builder
from flows.images.gate import building
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.locks import freshness, locking
from flows.locks.freshness import LockLook
from flows.locks.python import LockChange
from flows.progress import reported
from flows.settings import Settings
from flows.settings import load as load_settings


@dataclass(frozen=True)
class Lock:
    """A bundle's lock for one Python on one base, and what the run changed in it."""

    bundle: str
    base: str
    python: str
    change: LockChange


@dataclass(frozen=True)
class Target:
    """What is locked: a bundle for one Python, on one base."""

    bundle: Bundle
    base: Base
    python: str

    @property
    def folder(self) -> Path:
        """Where Pipfile and lock are."""
        return self.bundle.pythons[self.python]

    def __str__(self) -> str:
        return f"{self.bundle.name} {self.python}"


@task(task_run_name="locker on {base.name}", cache_policy=NO_CACHE)
def build_locker(base: Base, python_name: str, recipes: Catalog, settings: Settings) -> str:
    """Find or build the image in which locks for a base are made; returns its digest."""
    builder = Builder(settings, Registry(settings))
    foundation = Assembler(recipes, partial(freshness.resolve, settings=settings)).foundation(base, python_name)
    return builder.build(locker.stage(foundation, python_name, recipes.root), builder.build(foundation, None)).digest


@task(task_run_name="lock {target.bundle.name} for {target.python}", cache_policy=NO_CACHE)
def lock_bundle(target: Target, image: str, look: LockLook, settings: Settings) -> Lock:
    """Resolve all categories of a bundle's Pipfile to exact versions with hashes, and export them."""
    name = f"{target.bundle.name}-{target.python}"
    with reported(f"lock {target}"), command.logged(settings.folder("logs", "locks") / f"{name}.log"):
        change = locking.lock(target.folder, image, settings)
    freshness.keep(look, settings)
    return Lock(target.bundle.name, target.base.name, target.python, change)


@flow(name="lock-requirements", flow_run_name="lock {release}")
def lock_requirements(
    release: str = "2026a", bundles: list[str] | None = None, catalog: Path | None = None
) -> tuple[Lock, ...]:
    """Lock the Python requirements of the bundles of a release.

    Args:
        release: Name of the release, e.g. 2026a.
        bundles: Bundles to lock, e.g. minimal. Empty means all of the release.
        catalog: Folder of the catalog. Empty means the one of the settings.
    """
    settings = load_settings()
    recipes = load.load_catalog(catalog or settings.catalog)
    wanted = targets(load.release(recipes, release).profiles, bundles)
    with building(open_database(settings.database)), command.ending_all():
        looks = freshness.look_at_locks([target.folder for target in wanted], settings)
        outcomes = carry_out(wanted, looks, recipes, settings)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    done = tuple(outcome for outcome in outcomes if isinstance(outcome, Lock))
    _show(done, release)
    return done


def carry_out(
    wanted: Sequence[Target], looks: Mapping[Path, LockLook], recipes: Catalog, settings: Settings
) -> list[Lock | BaseException]:
    """Lock all at once, each in its base; what came out of each, in their order. One that fails stops no other.

    Args:
        wanted: what is locked.
        looks: folder → what was seen of the indexes just before.
        recipes: the catalog that they are in.
        settings: where the registry is, and what locks need.
    """
    lockers = {(t.base.name, t.python): build_locker.submit(t.base, t.python, recipes, settings) for t in wanted}
    images = {key: future.result(raise_on_failure=False) for key, future in lockers.items()}
    futures = [
        image
        if isinstance(image := images[target.base.name, target.python], BaseException)
        else lock_bundle.submit(target, image, looks[target.folder], settings)
        for target in wanted
    ]
    return [f if isinstance(f, BaseException) else f.result(raise_on_failure=False) for f in futures]


def targets(profiles: Iterable[Profile], bundles: Sequence[str] | None = None) -> list[Target]:
    """Each bundle and Python once that has a Pipfile.

    Raises:
        UnknownName: the release ships no such bundle.
    """
    profiles = tuple(profiles)
    shipped = {profile.bundle.name for profile in profiles}
    for name in bundles or ():
        if name not in shipped:
            raise UnknownName("bundle", name, shipped)
    return list(
        {
            (p.bundle.name, p.python): Target(p.bundle, p.base, p.python)
            for p in profiles
            if p.python in p.bundle.pythons and (not bundles or p.bundle.name in bundles)
        }.values()
    )


def _show(locks: tuple[Lock, ...], release: str) -> None:
    create_table_artifact(
        key=f"locks-{release}",
        description=f"Locks of release {release}",
        table=[{"bundle": lock.bundle, "python": lock.python, "change": str(lock.change)} for lock in locks],
    )
