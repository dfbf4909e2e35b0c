"""Build and publish the images of a release: each distinct stage once, then each image's labels, checks and tags."""

import datetime
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.build_stages import call_builders, clear_away
from flows.catalog.load import newest_release
from flows.catalog.model import Profile
from flows.core import command, database, progress
from flows.core.errors import RefitError, Vanished
from flows.core.formatting import as_cells, in_markdown
from flows.core.progress import State
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.host import tools
from flows.images import graph_drawing
from flows.images.build import Builder, Built
from flows.images.builder.build_lock import building
from flows.images.builder.workspace import recover
from flows.images.distributed.coordinator import RemoteBuilder
from flows.images.ledger import Ledger
from flows.images.order import Order
from flows.images.plan import Action, Plan, jobs, together, urgency
from flows.images.registry import Registry
from flows.images.stages import Stage
from flows.orchestration.admission import Request, admit
from flows.publishing import evidence, statements
from flows.publishing.publish import EVENT, already, publish
from flows.publishing.published import Published
from flows.publishing.signatures import Publications
from flows.publishing.statements import Made
from flows.releases.plan import ReleasePlan, plan_release
from flows.releases.report import BuildFailed, BuildReport, has_failed

logger = logging.getLogger("refit.build")
# The start of the name of a job that publishes an image; the other jobs have the names of stages.
PUBLISH = "publish "
# For Prefect; how many jobs run at once is decided by what the machine has.
THREADS = cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner(max_workers=64))
# What was planned, and job → what came out of it, or an error.
Attempt = tuple[ReleasePlan, Mapping[str, object]]


@task(task_run_name="plan", cache_policy=NO_CACHE)
def make_plan(release: str, profiles: Sequence[str], catalog: Path | None, settings: Settings) -> ReleasePlan:
    """Resolve, render and look up all stages: what is there, what has to be built, and why."""
    planned = plan_release(release, profiles, catalog, settings, thorough=True, tolerant=True)
    for step in planned.plan.steps.values():
        progress.report(step.stage, State.reused if step.action is Action.reuse else State.waiting, step.reason)
        if step.action is not Action.reuse:
            get_run_logger().info("%s: %s (%s)", step.stage, step.action, step.reason)
    for stem, why in planned.unbuildable.items():
        get_run_logger().warning("%s can't be built here: %s", stem, why)
    return planned


@task(task_run_name="stage {stage.name}", cache_policy=NO_CACHE)
def build_stage(
    stage: Stage, parent: Built | None, builder: Builder | RemoteBuilder, above: Sequence[Stage] = ()
) -> Mapping[str, Built]:
    """Find the stage by its key, or build it; then graft those above it, for a task takes as long as a graft.

    Returns what is there. Those that can't be grafted, or fail, are left to tasks of their own.
    """
    made = {stage.name: builder.build(stage, parent)}
    for other in above:
        if (below := made.get(other.parent or "")) and isinstance(builder, Builder):
            with suppress(Exception):
                made[other.name] = builder.graft(other, below)
    for built in made.values():
        get_run_logger().info("%s: %s as %s", built.stage, built.how, built.digest)
    return made


@task(task_run_name="publish {profile.stem}", cache_policy=NO_CACHE)
def publish_image(
    profile: Profile,
    ancestry: tuple[Stage, ...],
    built: tuple[Built, ...],
    date: datetime.date,
    settings: Settings,
) -> Published:
    """Label, check and tag one image; `built` is what came out of the stages of its ancestry."""
    opened = database.open_database(settings.database)
    made = _made(built, Ledger(opened))
    predicate = statements.predicate(profile, ancestry, made, run=f"flow-runs/{runtime.flow_run.id}")
    published = publish(profile, built[-1], evidence.of_stages(ancestry), date, settings, opened, predicate)
    if published.new:
        _announce(published, profile.release)
    return published


def _announce(image: Published, release: str) -> None:
    """The event on which what follows a new image can be automated, a migration for instance."""
    emit_event(
        EVENT,
        resource={
            "prefect.resource.id": f"refit.profile.{image.profile}",
            "prefect.resource.name": image.profile,
            "refit.release": release,
        },
        payload={"tag": image.tag, "digest": image.digest, "release": release},
    )


def _made(built: Sequence[Built], ledger: Ledger) -> tuple[Made, ...]:
    """How the stages of an image came about, with what went in when they were built."""
    entries = ledger.of([stage.key for stage in built])
    return tuple(
        Made(
            stage=stage.stage,
            key=stage.key,
            digest=stage.digest,
            inputs=entries[stage.key].inputs if stage.key in entries else {},
            how=stage.how,
            why=stage.reason,
        )
        for stage in built
    )


def _name() -> str:
    return f"build {runtime.flow_run.parameters.get('release') or 'the newest release'}"


@flow(
    name="build-profiles",
    flow_run_name=_name,
    on_cancellation=[clear_away],
    on_crashed=[clear_away],
    task_runner=THREADS,
)
def build_profiles(
    release: str = "",
    profiles: list[str] | None = None,
    date: datetime.date | None = None,
    catalog: Path | None = None,
    graft: bool = True,
    systems: list[str] | None = None,
    force: bool = False,
    builders: int | None = None,
) -> BuildReport:
    """Build and publish the images of a release.

    Args:
        release: Name of the release, e.g. 2026a. Empty means the newest.
        profiles: Profiles to build, e.g. jupyter-minimal-deb12-py311. Empty means all of the release.
        date: Date of the tags. Empty means the UTC date on which this run was due.
        catalog: Folder of the catalog. Empty means the one of the settings.
        graft: Carry layers over to a new base where that gives what a build would give, instead of building them.
        systems: Operating systems to build for, e.g. deb12. Empty means all of the release.
        force: Build for operating systems that are held, too.
        builders: Machines that share the stages, for each operating system. 0 means this one alone, empty what the
            settings say.
    """
    settings = load_settings()
    if builders is not None:
        settings = settings.model_copy(update={"builders": builders})
    recover(settings)
    release = release or newest_release(catalog or settings.catalog)
    share = admit(
        Request(release, profiles or (), systems or (), catalog, force),
        settings,
        {**runtime.flow_run.parameters, "release": release, "date": date or due_date()},
    )
    if not share.profiles:
        return BuildReport((), (), {}, share.left)
    with building(database.open_database(settings.database)), command.terminating_children():

        def attempt(stems: Sequence[str]) -> Attempt:
            planned = make_plan(release, stems, catalog, settings)
            show_plan(planned, release)
            return planned, carry_out(planned, date or due_date(), settings, graft=graft)

        attempts = retry_vanished(attempt, [profile.stem for profile in share.profiles])
        report = replace(whole(attempts), left=share.left)
    _show(report, release)
    if has_failed(report, named=bool(profiles)):
        raise BuildFailed(report)
    return report


def retry_vanished(attempt: Callable[[Sequence[str]], Attempt], profiles: Sequence[str]) -> tuple[Attempt, ...]:
    """Plan and carry out; once more for the profiles of which something went from the mirror in between."""
    first = attempt(profiles)
    if not (gone := _gone(first)):
        return (first,)
    for stem, why in gone.items():
        logger.warning("%s is resolved anew, and tried again: %s", stem, why)
    try:
        return first, attempt([*gone])
    except RefitError as error:  # what the first one made is there, and to be told of
        logger.warning("They could not be tried again: %s", error)
        return (first,)


def whole(attempts: Sequence[Attempt]) -> BuildReport:
    """What a run did in one attempt, or in two."""
    first, *later = (summary(planned, outcomes) for planned, outcomes in attempts)
    if not later:
        return first
    again, second, known = _gone(attempts[0]), later[0], {stage.key for stage in first.stages}
    return BuildReport(
        images=(*first.images, *second.images),
        stages=(*first.stages, *(stage for stage in second.stages if stage.key not in known)),
        failures={**{stem: why for stem, why in first.failures.items() if stem not in again}, **second.failures},
        unbuildable={**first.unbuildable, **second.unbuildable},
        again=again,
    )


def _gone(attempt: Attempt) -> dict[str, str]:
    """The profiles that may come out if all is resolved anew: stem → what had gone."""
    planned, outcomes = attempt
    found = ((profile.stem, outcomes[f"{PUBLISH}{profile.stem}"]) for profile in planned.profiles)
    return {stem: f"{error.what} {error.why}".strip() for stem, error in found if isinstance(error, Vanished)}


def due_date() -> datetime.date:
    """The UTC date on which the current run was due: the same when the run is resumed on the next day."""
    due = runtime.flow_run.scheduled_start_time
    return due.astimezone(datetime.UTC).date() if due else datetime.datetime.now(datetime.UTC).date()


def carry_out(
    planned: ReleasePlan, date: datetime.date, settings: Settings, *, graft: bool = True
) -> dict[str, object]:
    """Do what is planned, each job as soon as those that it needs are done; returns job → what came out, or an error.

    Jobs are the stages that aren't there, by their names, and the publishing of each image.
    """
    graph, profiles = planned.graph, {profile.stem: profile for profile in planned.profiles}
    outcomes = {**_reused(planned.plan), **_already_published(planned, settings)}
    stages = jobs(graph, planned.plan)
    missing = [name for name in stages if name not in outcomes]
    order, here = _order(planned, stages.values(), outcomes, graft), tools.builds_at_once(settings)
    above = together(graph, planned.plan) if graft and not settings.builders else {}
    running: dict[str, PrefectFuture[Any]] = {}
    ended: SimpleQueue[str] = SimpleQueue()

    def is_ours(job: str) -> bool:
        """Whether this machine does it; others take as much as they can."""
        return job not in stages or not settings.builders

    def fits(job: str) -> bool:
        return not is_ours(job) or sum(map(is_ours, running)) < here

    def submit(job: str, builder: Builder | RemoteBuilder) -> PrefectFuture[Any]:
        if stage := stages.get(job):
            parent = cast("Built | None", outcomes.get(stage.parent or ""))
            return build_stage.submit(stage, parent, builder, above.get(job, ()))
        profile = profiles[job.removeprefix(PUBLISH)]
        ancestry = graph.ancestry(graph.tops[profile.stem])
        built = tuple(cast("Built", outcomes[stage.name]) for stage in ancestry)
        return publish_image.submit(profile, ancestry, built, date, settings)

    with _building(missing, planned, settings, graft) as builder:
        while True:
            while job := order.start(fits):
                running[job] = submit(job, builder)
                running[job].add_done_callback(partial(_put, ended, job))
            if not running:
                _count(outcomes, settings)
                return outcomes
            job = ended.get()
            outcome = running.pop(job).result(raise_on_failure=False)
            made = {job: outcome} if isinstance(outcome, Published) else outcome
            if isinstance(made, Mapping):
                outcomes |= made
                for one in made:
                    order.done(one)
            else:
                outcomes |= dict.fromkeys((job, *order.failed(job)), outcome)


def _count(outcomes: Mapping[str, object], settings: Settings) -> None:
    """Count what came out for the figures of all runs, be it a night or not."""
    stages = (outcome.how for outcome in outcomes.values() if isinstance(outcome, Built))
    Ledger(database.open_database(settings.database)).count(stages)


@contextmanager
def _building(
    missing: Collection[str], planned: ReleasePlan, settings: Settings, graft: bool
) -> Iterator[Builder | RemoteBuilder]:
    """Who builds the stages that are missing: this machine, or those that are called for it."""
    if not settings.builders or not missing:
        yield Builder(settings, Registry(settings), graft=graft)
        return
    chains = ((profile.base.name, planned.graph.tops[profile.stem]) for profile in planned.profiles)
    systems = {stage.name: system for system, top in chains for stage in planned.graph.made_of(top)}
    handover = RemoteBuilder(settings, systems, urgency(planned.graph, planned.plan), graft=graft)
    with handover.going_on():
        called = call_builders(handover.jobs.run, {systems[name] for name in missing}, settings)
        get_run_logger().info("Called as builders: %s", called)
        yield handover


def _put(ended: SimpleQueue[str], job: str, _: object) -> None:
    ended.put(job)


def _reused(plan: Plan) -> dict[str, object]:
    return {
        name: Built(name, step.key, step.layer, step.digest)
        for name, step in plan.steps.items()
        if step.key and step.digest
    }


def _already_published(planned: ReleasePlan, settings: Settings) -> dict[str, object]:
    """The images for which nothing is to be done: looking costs some requests, publishing them again a task each."""
    tops = ((profile, planned.plan.steps[planned.graph.tops[profile.stem]].digest) for profile in planned.profiles)
    contents = [(profile, content) for profile, content in tops if content]
    publications = Publications(settings, database.open_database(settings.database))
    return {f"{PUBLISH}{image.profile}": image for image in already(contents, Registry(settings), publications)}


def _order(planned: ReleasePlan, stages: Iterable[Stage], there: Mapping[str, object], graft: bool) -> Order:
    """The order of all jobs; where layers may be carried, one that several images have is made for all of them."""
    images = {f"{PUBLISH}{stem}": (top,) for stem, top in planned.graph.tops.items()}
    every = {**{stage.name: stage.needs for stage in stages}, **images}
    needs = {job: wanted for job, wanted in every.items() if job not in there}
    steps = planned.plan.steps.values()
    unmade = {step.layer for step in steps if step.action is Action.build and step.layer} if graft else set()
    layers = {step.stage: step.layer for step in steps if step.layer in unmade and step.layer}
    return Order(needs, urgency(planned.graph, planned.plan), layers)


def summary(planned: ReleasePlan, outcomes: Mapping[str, object]) -> BuildReport:
    """What a run did, of what came out of its jobs."""
    published = {profile.stem: outcomes[f"{PUBLISH}{profile.stem}"] for profile in planned.profiles}
    nowhere = _nowhere(planned, outcomes)
    failed = {stem: str(outcome) for stem, outcome in published.items() if not isinstance(outcome, Published)}
    return BuildReport(
        images=tuple(outcome for outcome in published.values() if isinstance(outcome, Published)),
        stages=tuple(outcome for outcome in outcomes.values() if isinstance(outcome, Built)),
        failures={**planned.problems, **{stem: why for stem, why in failed.items() if stem not in nowhere}},
        unbuildable={**planned.unbuildable, **nowhere},
    )


def _nowhere(planned: ReleasePlan, outcomes: Mapping[str, object]) -> dict[str, str]:
    """The doubtful profiles that no builder could build either: stem → what can't be had, and what the builder says."""
    others = [outcomes[f"{PUBLISH}{one.stem}"] for one in planned.profiles if one.stem not in planned.doubtful]
    return {
        stem: f"{why}\n{error}"
        for stem, why in planned.doubtful.items()
        # What has failed for others, too, was not this; nor is it what had only gone from the mirror.
        if isinstance(error := outcomes[planned.graph.tops[stem]], RefitError)
        and not isinstance(error, Vanished)
        and error not in others
    }


def show_plan(planned: ReleasePlan, release: str) -> None:
    """What is there and what will be built, with a picture: an artifact of the run."""
    problems = {**planned.problems, **planned.unbuildable}
    left = "".join(f"\n\n**{stem}** can't be built here: {in_markdown(why)}" for stem, why in problems.items())
    create_markdown_artifact(
        key=f"plan-{release}",
        description=f"Plan of release {release}: what is there, and what is built",
        markdown=f"{graph_drawing.explained(planned.graph, planned.plan)}{left}",
    )


def _show(report: BuildReport, release: str) -> None:
    create_table_artifact(
        key=f"images-{release}",
        description=f"Images of release {release}",
        table=as_cells(
            [
                {"tag": i.tag, "digest": i.digest, "size (MB)": round(i.size / 1e6, 1), "new": i.new}
                for i in report.images
            ]
        ),
    )
    create_table_artifact(
        key=f"stages-{release}",
        description=f"Stages of release {release}",
        table=as_cells(
            [
                {"stage": s.stage, "digest": s.digest, "how": s.how, "seconds": round(s.seconds, 2), "why": s.reason}
                for s in report.stages
            ]
        ),
    )
