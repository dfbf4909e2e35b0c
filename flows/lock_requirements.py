"""Lock the Python requirements of the bundles of a release, each inside its target base's container."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

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


@task(task_run_name="locker on {base.name}", cache_policy=NO_CACHE)
def build_locker(base: Base, python_name: str, recipes: Catalog, settings: Settings) -> str:
    """Find or build the image in which locks for a base are made; returns its digest."""
    builder = Builder(settings, Registry(settings))
    foundation = Assembler(recipes, partial(freshness.resolve, settings=settings)).foundation(base, python_name)
    return builder.build(locker.stage(foundation, python_name, recipes.root), builder.build(foundation, None)).digest


@task(task_run_name="lock {bundle.name} for {python_name}", cache_policy=NO_CACHE)
def lock_bundle(bundle: Bundle, python_name: str, image: str, settings: Settings) -> LockChange:
    """Resolve all categories of a bundle's Pipfile to exact versions with hashes, and export them."""
    log = settings.folder("logs", "locks") / f"{bundle.name}-{python_name}.log"
    with reported(f"lock {bundle.name} {python_name}"), command.logged(log):
        return locking.lock(bundle.pythons[python_name], image, settings)


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
    wanted = _targets(load.release(recipes, release).profiles, bundles)
    with building(open_database(settings.database)), command.ending_all():
        images = {
            (base.name, python_name): build_locker.submit(base, python_name, recipes, settings)
            for _, base, python_name in wanted
        }
        locks = [
            (bundle, base, name, lock_bundle.submit(bundle, name, cast("str", images[base.name, name]), settings))
            for bundle, base, name in wanted
        ]
        done = tuple(Lock(bundle.name, base.name, name, future.result()) for bundle, base, name, future in locks)
    _show(done, release)
    return done


def _targets(profiles: Iterable[Profile], bundles: list[str] | None) -> list[tuple[Bundle, Base, str]]:
    """Each (bundle, base, Python) once that has a Pipfile.

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
            (p.bundle.name, p.python): (p.bundle, p.base, p.python)
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
