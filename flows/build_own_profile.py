"""Build a profile of a person's own: its recipe is nobody's word, so its stages are made behind walls."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from prefect import flow, get_run_logger
from sqlalchemy import Engine

from flows.authoring.own.catalog import composed
from flows.catalog.model import Catalog, Profile
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.leases import LeaseTaken, lease
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.core.waiting import wait_until
from flows.images.builder import confined
from flows.images.builder.build_lock import building
from flows.images.builder.workspace import recover
from flows.images.registry import Registry
from flows.images.run import Run
from flows.lock_requirements import carry_out, targets
from flows.locks import freshness
from flows.migrations.start_sessions import wish_of
from flows.orchestration.admission import Share
from flows.orchestration.builders import clear_away
from flows.orchestration.release_build import THREADS, build_release, due_date
from flows.publishing import own_images
from flows.publishing.own_profiles import OwnProfile, OwnProfiles, queued, repository
from flows.publishing.published import Published
from flows.publishing.stored_manifests import observe_images
from flows.releases.report import BuildFailed, has_failed

PATIENCE = 6 * 3600.0  # seconds that a build waits for others of people's own profiles
_POLL_SECONDS = 2.0


@flow(
    name="build-own-profile",
    flow_run_name="build {name}",
    on_cancellation=[clear_away],
    on_crashed=[clear_away],
    task_runner=THREADS,
)
def build_own_profile(name: str, owner: str = "") -> tuple[Published, ...]:
    """Lock, build and publish a profile of a person's own, in a repository of theirs.

    Args:
        name: Name of its bundle.
        owner: Person to whom it belongs still; empty: this is not looked at.
    """
    settings = load_settings().model_copy(update={"builders": 0})
    if why := confined.obstacle(settings):
        raise confined.Refused(why)
    recover(settings)
    records = OwnProfiles(open_database(settings.database))
    own = records.get(name, owner)
    with composed(wish_of(own), own.files, settings) as (recipes, profile), _turn(settings, records, own) as seconds:
        limits = settings.personal_builds
        minutes = min(limits.minutes, seconds / 60)
        hurried = settings.model_copy(update={"personal_builds": limits.model_copy(update={"minutes": minutes})})
        return _build(hurried, records, own, recipes, profile)


@contextmanager
def _turn(settings: Settings, records: OwnProfiles, own: OwnProfile) -> Iterator[float]:
    """Wait for a place among the builds of people's own profiles, note the build, and give the seconds that are left.

    A person has one build at a time, so that nobody takes all places.

    Raises:
        LimitReached: the person has used what their builds may take.
        LeaseTaken: there was no place in `PATIENCE` seconds.
    """
    database, limits = records.database, settings.personal_builds
    with (
        shown_as_waiting(database, own.bundle),
        lease(database, f"own-builds-of/{own.owner}", wait=PATIENCE),
        _place(settings, records),
    ):
        _check_size(settings, own.owner)
        build, remaining = records.begin(own.bundle, own.owner, limits)
        problem = "It was ended."
        try:
            yield remaining
            problem = ""
        except Exception as error:
            problem = "\n".join((error.what, error.why)) if isinstance(error, RefitError) else str(error)
            raise
        finally:
            records.end(build, problem)


@contextmanager
def shown_as_waiting(database: Engine, bundle: str) -> Iterator[None]:
    """Let `refit profile list` show inside the `with` block that a bundle waits, or is built."""
    with ExitStack() as stack:
        with suppress(LeaseTaken):  # another build of it waits already
            stack.enter_context(lease(database, queued(bundle), wait=0))
        yield


def _check_size(settings: Settings, owner: str) -> None:
    registry = Registry(settings, repository=repository(settings.repository, owner))
    own_images.check_size(observe_images(registry, None), owner, settings.personal_builds)


@contextmanager
def _place(settings: Settings, records: OwnProfiles) -> Iterator[None]:
    with ExitStack() as stack:

        def claim() -> bool:
            for number in range(settings.personal_builds.at_once):
                with suppress(LeaseTaken):
                    stack.enter_context(lease(records.database, f"own-build/{number}", wait=0))
                    return True
            return False

        if not wait_until(claim, seconds=PATIENCE, pause=_POLL_SECONDS):
            raise LeaseTaken("own-build", PATIENCE)
        yield


def _build(
    settings: Settings, records: OwnProfiles, own: OwnProfile, recipes: Catalog, profile: Profile
) -> tuple[Published, ...]:
    date, mine = due_date(), repository(settings.repository, own.owner)
    with (
        Registry(settings, repository=mine) as registry,
        Registry(settings) as everybodys,
        building(records.database),
        command.terminating_children(),
    ):
        _check_name(everybodys, profile)
        _lock(settings, own.release, recipes)
        run = Run(settings, registry, records.database, date)
        report = build_release(own.release, Share((profile,)), recipes, run, show_unchanged=True).report
        if has_failed(report, named=True):
            raise BuildFailed(report)
        for image in report.images:
            own_images.carry(everybodys, registry, image.digest)
            get_run_logger().info("%s is %s:%s", own.profile, mine, image.tag)
        return report.images


def _check_name(everybodys: Registry, profile: Profile) -> None:
    """Refuse the name of a profile that the catalog had: its image is that of the catalog for everybody.

    Raises:
        RefitError: there are images of it.
    """
    if everybodys.digest(everybodys.repository, f"{profile.stem}_{profile.release}"):
        raise RefitError(
            f"The catalog had a profile {profile.stem!r} in release {profile.release}, whose images are here still.",
            hint="choose another name: `--as NAME`.",
        )


def _lock(settings: Settings, release: str, recipes: Catalog) -> None:
    """Lock its packages, as wheels alone: nothing of them runs for that."""
    lock_targets = targets([recipes.releases[release]])
    looks = freshness.look_at_locks({target.folder: target.terms for target in lock_targets}, settings)
    for outcome in carry_out(lock_targets, looks, recipes, settings):
        if isinstance(outcome, BaseException):
            raise outcome
