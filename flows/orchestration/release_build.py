"""Build and publish a release: plan it, make each distinct stage once, publish each image once its stages are there."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, cast

from prefect import get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.catalog.model import Catalog, Profile
from flows.core import progress
from flows.core.errors import RefitError
from flows.core.formatting import in_markdown, some
from flows.core.progress import State
from flows.host import tools
from flows.images import graph_drawing
from flows.images.build import Builder, Built
from flows.images.distributed.remote_builder import RemoteBuilder
from flows.images.ledger import Ledger
from flows.images.order import Order
from flows.images.plan import Action, Plan, jobs, together, urgency
from flows.images.run import Run
from flows.images.stages import Stage
from flows.orchestration.admission import Share
from flows.orchestration.builders import call_builders
from flows.publishing import evidence, provenance
from flows.publishing.publish import EVENT, already, publish
from flows.publishing.published import Published
from flows.publishing.signatures import Publications
from flows.releases.outcomes import Attempt, ImageJob, Job, Outcomes, ReleaseBuild, StageJob
from flows.releases.plan import ReleasePlan, plan_release
from flows.sessions.engines import image_look, is_pod

logger = logging.getLogger("refit.build")
# For Prefect; how many jobs run at once is decided by what the machine has.
THREADS = cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner(max_workers=64))


class NoBuildsHere(RefitError):
    """Stages are missing, and Refit is a Pod that calls no builders."""

    def __init__(self, missing: Collection[str]) -> None:
        super().__init__(
            f"{some(sorted(missing))} can't be built by a Refit that is a Pod.",
            why="It isn't root, and its Pod may neither mount nor make users.",
            hint="let Jobs build: `kubernetes.builder_job` and `builders` in settings.yaml (docs/kubernetes.md).",
        )


def due_date() -> datetime.date:
    """The UTC date on which the current run was due: the same when the run is resumed on the next day."""
    due = runtime.flow_run.scheduled_start_time
    return due.astimezone(datetime.UTC).date() if due else datetime.datetime.now(datetime.UTC).date()


def build_release(release: str, share: Share, recipes: Catalog, run: Run, *, show_unchanged: bool) -> ReleaseBuild:
    """Plan, build, check and publish what a run has been admitted to; a failure stops only what needs it.

    Where the mirror has lost something between plan and build, the profiles that took it are planned anew, once.

    Args:
        release: its name.
        share: the part that is built here.
        recipes: the catalog that the release is of.
        run: with which registry, for which date.
        show_unchanged: draw a plan that has nothing to do, too.

    Raises:
        RefitError: nothing can be planned.
    """
    if not share.profiles:
        return ReleaseBuild((), share.left)

    def attempt(profiles: Sequence[Profile]) -> Attempt:
        planned = make_plan(release, profiles, recipes, run)
        if show_unchanged or any(step.action is not Action.reuse for step in planned.plan.steps.values()):
            _show_plan(planned, release)
        return Attempt(planned, carry_out(planned, run))

    first = attempt(share.profiles)
    return ReleaseBuild((first, *_try_again(attempt, share.profiles, first.vanished)), share.left)


def _try_again(
    attempt: Callable[[Sequence[Profile]], Attempt], profiles: Sequence[Profile], vanished: Mapping[str, str]
) -> tuple[Attempt, ...]:
    for stem, why in vanished.items():
        logger.warning("%s is resolved anew, and tried again: %s", stem, why)
    try:
        return (attempt([profile for profile in profiles if profile.stem in vanished]),) if vanished else ()
    except RefitError as error:  # what the first attempt made is there, and its report must not be lost
        logger.warning("They could not be tried again: %s", error)
        return ()


@task(task_run_name="plan", cache_policy=NO_CACHE)
def make_plan(release: str, profiles: Sequence[Profile], recipes: Catalog, run: Run) -> ReleasePlan:
    """Resolve, render and look up all stages: what is there, what has to be built, and why."""
    planned = plan_release(release, profiles, recipes, run.settings, run.registry, thorough=True, tolerant=True)
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
def publish_image(profile: Profile, ancestry: tuple[Stage, ...], built: tuple[Built, ...], run: Run) -> Published:
    """Label, check and tag one image; `built` is what came out of the stages of its ancestry."""
    origins = provenance.made_of(built, Ledger(run.database))
    predicate = provenance.predicate(profile, ancestry, origins, run=f"flow-runs/{runtime.flow_run.id}")
    published = publish(profile, built[-1], evidence.of_stages(ancestry), run, predicate, image_look(run.settings))
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


def carry_out(planned: ReleasePlan, run: Run) -> Outcomes:
    """Do what is planned, each job as soon as those that it needs are done."""
    outcomes = Outcomes({**_reused(planned.plan)}, {**_already_published(planned, run)})
    stages = jobs(planned.graph, planned.plan)
    missing = [name for name in stages if name not in outcomes.stages]
    with _builder(missing, planned, run) as builder:
        _Execution(planned, stages, outcomes, builder, run).finish()
    Ledger(run.database).count(stage.how for stage in outcomes.built)
    return outcomes


class _Execution:
    """The jobs of a plan while they run: the stages that aren't there, and the publishing of each image."""

    def __init__(
        self,
        planned: ReleasePlan,
        stages: Mapping[str, Stage],
        outcomes: Outcomes,
        builder: Builder | RemoteBuilder,
        run: Run,
    ) -> None:
        self._planned, self._stages, self._outcomes = planned, stages, outcomes
        self._builder, self._run = builder, run
        self._profiles = {profile.stem: profile for profile in planned.profiles}
        self._order = _order(planned, stages, outcomes, run.graft)
        self._at_once = tools.builds_at_once(run.settings)
        grouped = run.graft and not run.settings.builders
        self._above = together(planned.graph, planned.plan) if grouped else {}
        self._running: dict[Job, PrefectFuture[Any]] = {}
        self._ended: SimpleQueue[Job] = SimpleQueue()

    def finish(self) -> None:
        """Run all jobs; returns when nothing runs and nothing more can start."""
        while True:
            while job := self._order.start(self._fits):
                self._running[job] = self._submit(job)
                self._running[job].add_done_callback(partial(self._put, job))
            if not self._running:
                return
            self._take(self._ended.get())

    def _fits(self, job: Job) -> bool:
        return not self._is_ours(job) or sum(map(self._is_ours, self._running)) < self._at_once

    def _is_ours(self, job: Job) -> bool:
        """Whether this machine does it; others take as much as they can."""
        return isinstance(job, ImageJob) or not self._run.settings.builders

    def _submit(self, job: Job) -> PrefectFuture[Any]:
        if isinstance(job, StageJob):
            stage = self._stages[job.stage]
            parent = cast("Built | None", self._outcomes.stages.get(stage.parent or ""))
            return build_stage.submit(stage, parent, self._builder, self._above.get(job.stage, ()))
        graph = self._planned.graph
        ancestry = graph.ancestry(graph.tops[job.profile])
        built = tuple(cast("Built", self._outcomes.stages[stage.name]) for stage in ancestry)
        return publish_image.submit(self._profiles[job.profile], ancestry, built, self._run)

    def _put(self, job: Job, _: object) -> None:
        self._ended.put(job)

    def _take(self, job: Job) -> None:
        """Note what came out of a job that has ended."""
        outcome = self._running.pop(job).result(raise_on_failure=False)
        if isinstance(outcome, Published):
            self._outcomes.images[outcome.profile] = outcome
            self._order.done(job)
        elif isinstance(outcome, Mapping):
            for name, built in outcome.items():
                self._outcomes.stages[name] = built
                self._order.done(StageJob(name))
        else:
            for lost in (job, *self._order.failed(job)):
                self._outcomes.fail(lost, outcome)


def _order(planned: ReleasePlan, stages: Mapping[str, Stage], outcomes: Outcomes, graft: bool) -> Order[Job]:
    """The order of all jobs; where layers may be carried, one that several images have is made for all of them."""
    needs: dict[Job, tuple[Job, ...]] = {
        **{StageJob(name): tuple(map(StageJob, stage.needs)) for name, stage in stages.items()},
        **{ImageJob(stem): (StageJob(top),) for stem, top in planned.graph.tops.items()},
    }
    steps = planned.plan.steps.values()
    unmade = {step.layer for step in steps if step.action is Action.build and step.layer} if graft else set()
    return Order(
        {job: needed for job, needed in needs.items() if not outcomes.has(job)},
        {StageJob(name): seconds for name, seconds in urgency(planned.graph, planned.plan).items()},
        {StageJob(step.stage): step.layer for step in steps if step.layer in unmade and step.layer},
    )


@contextmanager
def _builder(missing: Collection[str], planned: ReleasePlan, run: Run) -> Iterator[Builder | RemoteBuilder]:
    """The builder of the missing stages: this machine, or machines that are called for it.

    Raises:
        RefitError: this is a Pod that calls none, or those that are called can't be had.
    """
    settings = run.settings
    if not settings.builders or not missing:
        if missing and is_pod(settings):
            raise NoBuildsHere(missing)
        yield Builder(settings, run.registry, graft=run.graft)
        return
    chains = ((profile.base.name, planned.graph.tops[profile.stem]) for profile in planned.profiles)
    systems = {stage.name: system for system, top in chains for stage in planned.graph.made_of(top)}
    handover = RemoteBuilder(settings, run.registry, systems, urgency(planned.graph, planned.plan), graft=run.graft)
    with handover.going_on():
        called = call_builders(handover.jobs.run, {systems[name] for name in missing}, settings)
        get_run_logger().info("Called as builders: %s", called)
        yield handover


def _reused(plan: Plan) -> dict[str, Built]:
    return {
        name: Built(name, step.key, step.layer, step.digest)
        for name, step in plan.steps.items()
        if step.key and step.digest
    }


def _already_published(planned: ReleasePlan, run: Run) -> dict[str, Published]:
    """The images for which nothing is to be done: looking costs some requests, publishing them again a task each."""
    tops = ((profile, planned.plan.steps[planned.graph.tops[profile.stem]].digest) for profile in planned.profiles)
    contents = [(profile, content) for profile, content in tops if content]
    publications = Publications(run.settings, run.database, run.registry)
    return {image.profile: image for image in already(contents, run.registry, publications)}


def _show_plan(planned: ReleasePlan, release: str) -> None:
    """The stages that are there and those that will be built, with a picture: an artifact of the run."""
    problems = {**planned.problems, **planned.unbuildable}
    unbuildable = "".join(f"\n\n**{stem}** can't be built here: {in_markdown(why)}" for stem, why in problems.items())
    create_markdown_artifact(
        key=f"plan-{release}",
        description=f"Plan of release {release}: what is there, and what is built",
        markdown=f"{graph_drawing.explained(planned.graph, planned.plan)}{unbuildable}",
    )
