"""Prune: images and stages that nobody needs leave the registry, and this machine forgets what it can have again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from prefect import flow
from prefect.artifacts import create_table_artifact
from sqlalchemy import Engine

from flows.core import progress
from flows.core.database import now, open_database
from flows.core.formatting import as_cells
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.images.builder import cache, local
from flows.images.builder.build_lock import pruning
from flows.images.registry import Registry
from flows.migrations.journal import Journal
from flows.migrations.move_steps import FINAL, State
from flows.migrations.steps import previous_containers
from flows.publishing import prune, stored_manifests
from flows.publishing.own_profiles import OwnProfiles, repository
from flows.publishing.prune import OwnImages, Plan, Policy
from flows.services import garbage
from flows.sessions import engines
from flows.sessions.lifecycle import Sessions
from flows.sessions.snapshots.records import SnapshotRecords
from flows.sessions.snapshots.retention import images_kept
from flows.sessions.store import Store


@dataclass(frozen=True)
class PruneReport:
    """The report of a prune or of its plan.

    Attributes:
        plan: the images that stay and those that go, or have gone, with the reasons.
        done: it was carried out.
        freed: place on this machine → bytes that it takes less than before.
        left: tasks for a person, in words.
    """

    plan: Plan
    done: bool
    freed: Mapping[str, int] = field(default_factory=dict)
    left: str = ""


@flow(name="prune-images")
def prune_images(dry_run: bool = True) -> PruneReport:
    """Remove images, stages and logs that nobody needs, and free their space.

    Args:
        dry_run: Only show what would be removed. Nothing is touched.
    """
    settings = load_settings()
    database = open_database(settings.database)
    if dry_run:
        return _shown(PruneReport(make_plan(settings, database), done=False))
    with pruning(database, settings):
        before = local.sizes(settings)
        report = _carry_out(settings, database)
        after = local.sizes(settings)
    return _shown(replace(report, freed={name: before[name] - after.get(name, 0) for name in before}))


def make_plan(settings: Settings, database: Engine) -> Plan:
    """The plan of a prune now."""
    storage = prune.storage_of(settings)
    images, stages = stored_manifests.observe(Registry(settings), database, storage)
    policy = Policy(settings.keep_images, settings.keep_days)
    people = [_images_of(settings, owner, stems) for owner, stems in OwnProfiles(database).people().items()]
    return prune.plan(images, stages, in_use(settings, database), now(), policy, people)


def _images_of(settings: Settings, owner: str, stems: frozenset[str]) -> OwnImages:
    registry = Registry(settings, repository=repository(settings.repository, owner))
    return OwnImages(stored_manifests.observe_images(registry, prune.storage_of(settings)), stems)


def in_use(settings: Settings, database: Engine) -> dict[str, str]:
    """Digest → which session, container, move that isn't over, or snapshot refers to it."""
    journal = Journal(database)
    # A held move is over for the machine, and not for the person who has to decide.
    open_moves = [move for move in journal.latest().values() if move.state not in FINAL or move.state is State.held]
    return {
        **images_kept(SnapshotRecords(database).all(), settings.keep_images_of_snapshots),
        **{container.image: f"container {container.name}" for container in engines.engine(settings).containers()},
        **{
            session.image: f"the move of session {session.name}"
            for move in (*open_moves, *journal.unfinished())
            for session in (move.before, move.after)
        },
        **{session.image: f"session {session.name}" for session in Store(database).sessions()},
    }


def _carry_out(settings: Settings, database: Engine) -> PruneReport:
    registry = Registry(settings)
    previous_containers.clear(Sessions.open(settings, database), Journal(database), settings.migration.keep_hours)
    with progress.reported("registry", "looking"):
        chosen = make_plan(settings, database)
        done = prune.remove(chosen, registry, database, _asking(settings, database))
    left = ""
    with progress.reported("this machine", "clearing"):
        staying = {item.digest for item in done.keep}
        local.clear_builds(settings, staying)
        # Only what is needed now stays on this machine: all else can be pulled again.
        local.clear_images(settings, in_use(settings, database))
        cache.shrink(settings)
        local.clear_logs(settings, now())
    if settings.registry:
        left = garbage.elsewhere(settings)
    else:
        with progress.reported("garbage collection"):
            garbage.collect(settings)
    return PruneReport(done, done=True, left=left)


def _asking(settings: Settings, database: Engine) -> Callable[[], dict[str, str]]:
    return lambda: in_use(settings, database)


def _shown(report: PruneReport) -> PruneReport:
    create_table_artifact(
        key="prune",
        description="Removed from the registry" if report.done else "Would be removed from the registry",
        table=as_cells(
            [
                {"repository": item.repository, "tags": ", ".join(item.tags), "digest": item.digest, "why": item.reason}
                for item in report.plan.remove
            ]
        ),
    )
    return report
