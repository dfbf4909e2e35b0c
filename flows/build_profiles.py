"""Build and publish the images of a release: each distinct stage once, then each image's labels, checks and tags."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows import command, containers, database
from flows.catalog import load
from flows.catalog.model import Catalog, Profile
from flows.errors import RefitError
from flows.images import evidence, stages
from flows.images.build import Builder, Built, recover
from flows.images.publish import Published, publish
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Graph, Stage
from flows.locks import system
from flows.settings import Settings
from flows.settings import load as load_settings

# More than this many builds at once fight over one disk (docs/decisions.md).
PARALLEL_STAGES = 4


@dataclass(frozen=True)
class BuildReport:
    """What a run did: every image, every stage, and why what failed did."""

    images: tuple[Published, ...]
    stages: tuple[Built, ...]
    failures: Mapping[str, str]

    @property
    def built(self) -> tuple[Built, ...]:
        """The stages that had to be built."""
        return tuple(stage for stage in self.stages if not stage.reused)


class BuildFailed(RefitError):
    """Some profiles could not be built; all others were."""

    def __init__(self, report: BuildReport) -> None:
        self.report = report
        super().__init__(
            f"{len(report.failures)} of {len(report.failures) + len(report.images)} profiles failed.",
            why="\n".join(f"{profile}: {reason}" for profile, reason in report.failures.items()),
        )


@task(task_run_name="assemble", cache_policy=NO_CACHE)
def assemble(profiles: Sequence[Profile], recipes: Catalog, settings: Settings) -> Graph:
    """Resolve system packages, render all Containerfiles, and join them into one graph of distinct stages."""
    assembler = Assembler(recipes, partial(system.resolve, settings=settings))
    return stages.join({profile.stem: assembler.chain(profile) for profile in profiles})


@task(task_run_name="stage {stage.name}", cache_policy=NO_CACHE)
def build_stage(stage: Stage, parent: Built | None, builder: Builder) -> Built:
    """Find the stage by its key, or build it."""
    built = builder.build(stage, parent)
    get_run_logger().info("%s: %s as %s", stage.name, "reused" if built.reused else "built", built.digest)
    return built


@task(task_run_name="publish {profile.stem}", cache_policy=NO_CACHE)
def publish_image(
    profile: Profile, top: Built, ancestry: tuple[Stage, ...], date: datetime.date, settings: Settings
) -> Published:
    """Label, check and tag one image."""
    return publish(
        profile, top, evidence.of_stages(ancestry), date, settings, database.open_database(settings.database)
    )


def clear_away(flow: Any, flow_run: Any, state: Any) -> None:
    """After a run that was cancelled or killed: end what it started, remove its containers and mounts.

    Prefect calls it in the worker, by these names of parameters.
    """
    settings = load_settings()
    recover(settings)
    containers.remove_orphans(settings)


@flow(
    name="build-profiles",
    flow_run_name="build {release}",
    on_cancellation=[clear_away],
    on_crashed=[clear_away],
    task_runner=cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner(max_workers=PARALLEL_STAGES)),
)
def build_profiles(
    release: str = "2026a",
    profiles: list[str] | None = None,
    date: datetime.date | None = None,
    catalog: Path | None = None,
) -> BuildReport:
    """Build and publish the images of a release.

    Args:
        release: Name of the release, e.g. 2026a.
        profiles: Profiles to build, e.g. jupyter-minimal-deb12-py311. Empty means all of the release.
        date: Date of the tags. Empty means the UTC date on which this run was due.
        catalog: Folder of the catalog. Empty means the one of the settings.
    """
    settings = load_settings()
    recover(settings)
    recipes = load.load_catalog(catalog or settings.catalog)
    wanted = load.release(recipes, release).profiles
    if profiles:
        wanted = tuple(load.profile(recipes, release, stem) for stem in profiles)
    graph = assemble(wanted, recipes, settings)
    with command.ending_all():
        report = _carry_out(graph, wanted, date or due_date(), settings)
    _show(report, release)
    if report.failures:
        raise BuildFailed(report)
    return report


def due_date() -> datetime.date:
    """The UTC date on which the current run was due: the same when the run is resumed on the next day."""
    due = runtime.flow_run.scheduled_start_time
    return due.astimezone(datetime.UTC).date() if due else datetime.datetime.now(datetime.UTC).date()


def _carry_out(graph: Graph, profiles: tuple[Profile, ...], date: datetime.date, settings: Settings) -> BuildReport:
    """Hand everything to the task runner at once; where a task is given a future, Prefect awaits its result first."""
    builder = Builder(settings, Registry(settings))
    building: dict[str, PrefectFuture[Built]] = {}
    for name, stage in graph.stages.items():
        parent = building[stage.parent] if stage.parent else None
        building[name] = build_stage.submit(stage, cast("Built | None", parent), builder)
    publishing: dict[str, PrefectFuture[Published]] = {}
    for profile in profiles:
        top = graph.tops[profile.stem]
        ancestry = graph.ancestry(top)
        publishing[profile.stem] = publish_image.submit(profile, cast("Built", building[top]), ancestry, date, settings)
    outcomes = {name: future.result(raise_on_failure=False) for name, future in publishing.items()}
    built = {name: future.result(raise_on_failure=False) for name, future in building.items()}
    return BuildReport(
        images=tuple(outcome for outcome in outcomes.values() if isinstance(outcome, Published)),
        stages=tuple(outcome for outcome in built.values() if isinstance(outcome, Built)),
        failures={
            profile: _reason(outcome, graph, graph.tops[profile], built)
            for profile, outcome in outcomes.items()
            if not isinstance(outcome, Published)
        },
    )


def _reason(outcome: object, graph: Graph, top: str, built: Mapping[str, object]) -> str:
    """The error of the lowest stage that failed, else that of publishing."""
    for stage in graph.ancestry(top):
        if not isinstance(built[stage.name], Built):
            return str(built[stage.name])
    return str(outcome)


def _show(report: BuildReport, release: str) -> None:
    create_table_artifact(
        key=f"images-{release}",
        description=f"Images of release {release}",
        table=[
            {"tag": i.tag, "digest": i.digest, "size (MB)": round(i.size / 1e6, 1), "new": i.new} for i in report.images
        ],
    )
    create_table_artifact(
        key=f"stages-{release}",
        description=f"Stages of release {release}",
        table=[
            {"stage": s.stage, "digest": s.digest, "reused": s.reused, "seconds": round(s.seconds, 1)}
            for s in report.stages
        ],
    )
