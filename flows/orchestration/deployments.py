"""Offer the flows in Prefect's UI: work pools, deployments, and an end for runs whose process is gone.

Each can be repeated, and leaves alone all that is as it should be. Schedules that a person made in the UI stay.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import psutil
from prefect import Flow, get_client
from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.actions import ChangeFlowRunState, RunDeployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed
from prefect.utilities.callables import parameter_schema

from flows.catalog.model import Base, Release
from flows.core.settings import load
from flows.core.settings.policy import RolloutPolicy
from flows.orchestration import builder_jobs, builder_pod, offered, queues
from flows.publishing.publish import EVENT
from flows.services.prefect_services import BASE_JOB_TEMPLATE, HEARTBEAT, POOL

DEPLOYMENT = "refit"
SYSTEMS = "systems"  # the parameter with the operating systems that a run is for
RELEASES = "releases"  # the parameter with the releases that a run is for
ONLY_BEGUN = "only_begun"  # the parameter by which a run only goes on with what others have begun
RELEASE = "refit-release"  # marks deployments and schedules that come from the file of a release
GO_ON, BEGIN = "refit-go-on", "refit-begin"  # the schedules of migrations
# A rollout is followed until it is over, though its run was killed, or came to the end of its hours.
_HOURLY = "0 * * * *"
# A flow run that is not seen for this long is taken for dead: three heartbeats, so that one may be late.
SILENCE = timedelta(seconds=3 * HEARTBEAT)
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Suspended", "Paused")


def deploy(
    flows: Iterable[Flow[..., Any]], bases: Iterable[Base] = (), releases: Iterable[Release] | None = None
) -> tuple[str, ...]:
    """Make work pools, deployments and automation as they should be; the names of the deployments.

    There is a pool for each of the `bases`, and in it a deployment of each flow that can work for some systems alone.
    Flows that can work for some releases alone have one for each that is supported, with the schedule of its file;
    where no `releases` are given, those stay as they are.
    Flows that can go on with what others have begun do so every hour, and begin when `migration` in the settings says.

    Runs that a power cut or `refit down` ended are called crashed: the automation sees only what a server that was
    up could see.

    The process must have been given `services.prefect_environment` before it imported this module. A flow has to lie
    in an installed module: a run imports it from there, so that there is no code to be fetched.
    """
    return asyncio.run(_deploy(tuple(flows), tuple(bases), None if releases is None else tuple(releases)))


async def _deploy(
    flows: tuple[Flow[..., Any], ...], bases: tuple[Base, ...], releases: tuple[Release, ...] | None
) -> tuple[str, ...]:
    async with get_client() as client:
        await _work_pool(client, POOL, dict(BASE_JOB_TEMPLATE))
        for base in bases:
            await _work_pool(client, queues.pool_of(base.name), queues.template(base))
        if of_jobs := load().kubernetes.builder_job:
            await _work_pool(client, builder_jobs.POOL, dict(BASE_JOB_TEMPLATE), builder_jobs.JobWorker.type)
        await _automation(client, crash_of_the_silent())
        await _settle(client)
        names = [name for flow in flows for name in await _deployments(client, flow, bases)]
        for flow in flows if of_jobs else ():
            if offered.entrypoint(flow) == builder_pod.ENTRYPOINT:
                await _deployment(client, flow, builder_jobs.DEPLOYMENT, builder_jobs.POOL)
                names.append(f"{flow.name}/{builder_jobs.DEPLOYMENT}")
        for flow in flows if releases is not None else ():
            if RELEASES in parameter_schema(flow).properties:
                names += await _nights(client, flow, releases or ())
        for flow in flows:
            if ONLY_BEGUN in parameter_schema(flow).properties:
                await _begin_by_itself(client, flow, load().migration)
        return tuple(names)


async def _work_pool(client: PrefectClient, name: str, template: dict[str, Any], kind: str = "process") -> None:
    try:
        pool = await client.read_work_pool(name)
    except ObjectNotFound:
        await client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=template))
        return
    if pool.base_job_template != template:
        await client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))


async def _deployments(client: PrefectClient, flow: Flow[..., Any], bases: Iterable[Base]) -> list[str]:
    """The deployment for all, and one for each operating system, where the flow can be told for which to work."""
    await _deployment(client, flow, DEPLOYMENT, POOL)
    names = [f"{flow.name}/{DEPLOYMENT}"]
    if SYSTEMS in parameter_schema(flow).properties:
        for base in bases:
            pool, chosen = queues.pool_of(base.name), {SYSTEMS: [base.name]}
            await _deployment(client, flow, base.name, pool, chosen)
            names.append(f"{flow.name}/{base.name}")
    return names


async def _nights(client: PrefectClient, flow: Flow[..., Any], releases: Iterable[Release]) -> list[str]:
    """A deployment for each release that is supported, on its schedule; none for others that were made here."""
    today = datetime.now(UTC).date()
    supported = {release.name: release for release in releases if release.is_supported(today)}
    for deployment in await _of(client, flow):
        if deployment.name not in supported and RELEASE in deployment.tags:
            await _schedule(client, deployment.id, RELEASE, "")
            if not await client.read_deployment_schedules(deployment.id):
                await client.delete_deployment(deployment.id)
    for name, release in supported.items():
        made = await _deployment(client, flow, name, POOL, {RELEASES: [name]}, (RELEASE,))
        await _schedule(client, made, RELEASE, release.nightly or "")
    return [f"{flow.name}/{name}" for name in supported]


async def _begin_by_itself(client: PrefectClient, flow: Flow[..., Any], policy: RolloutPolicy) -> None:
    [made] = [deployment.id for deployment in await _of(client, flow) if deployment.name == DEPLOYMENT]
    await _schedule(client, made, GO_ON, _HOURLY, {ONLY_BEGUN: True})
    await _schedule(client, made, BEGIN, policy.schedule or "")
    await _automation(client, when_published(made), policy.when_published)


async def _schedule(
    client: PrefectClient, deployment: UUID, slug: str, cron: str, parameters: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Let a deployment have this schedule, and whatever others it has; empty: only those.

    Whether it is paused stays as it is: that is a person's doing.
    """
    ours = [schedules for schedules in await client.read_deployment_schedules(deployment) if schedules.slug == slug]
    cron_schedule = CronSchedule(cron=cron, timezone="UTC") if cron else None
    for schedule in ours:
        if cron_schedule is None:
            await client.delete_deployment_schedule(deployment, schedule.id)
        elif schedule.schedule != cron_schedule:
            await client.update_deployment_schedule(deployment, schedule.id, schedule=cron_schedule)
    if cron_schedule and not ours:
        made = DeploymentScheduleCreate(schedule=cron_schedule, slug=slug, parameters=dict(parameters))
        await client.create_deployment_schedules(deployment, [made])


async def _of(client: PrefectClient, flow: Flow[..., Any]) -> list[DeploymentResponse]:
    return await client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow.name])))


async def _deployment(
    client: PrefectClient,
    flow: Flow[..., Any],
    name: str,
    pool: str,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    tags: tuple[str, ...] = (),
) -> UUID:
    values: dict[str, Any] = {
        "description": flow.description,
        "entrypoint": offered.entrypoint(flow),
        # Parts that somebody has added: a worker refuses a deployment that has any of it.
        **{"pull_steps": None, "path": None, "job_variables": {}},
        "work_pool_name": pool,
        "parameters": dict(parameters),
        "tags": list(tags),
        "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
        "enforce_parameter_schema": True,
    }
    existing = {deployment.name: deployment for deployment in await _of(client, flow)}
    if name in existing and (existing[name].storage_document_id or existing[name].infrastructure_document_id):
        await client.delete_deployment(existing.pop(name).id)  # nothing else takes these away
    if name in existing:  # creating it once more would remove the schedules that people made
        await client.update_deployment(existing[name].id, DeploymentUpdate(**values))
        return existing[name].id
    return await client.create_deployment(flow_id=await client.create_flow(flow), name=name, **values)


async def _settle(client: PrefectClient) -> None:
    """Crash the runs that are under way for the server and have no process on this machine any more."""
    under_way = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING]))
    )
    pools = [pool.name for pool in await client.read_work_pools(limit=queues.PAGE) if queues.is_ours(pool.name)]
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=pools))
    here = load().machine_name
    workers = await client.read_workers_for_work_pool(POOL)
    # A worker on another machine can't be seen from here: if it dies, its heartbeats end.
    alone = {worker.name for worker in workers} <= {queues.worker_of(here)}
    for run in await client.read_flow_runs(flow_run_filter=under_way, work_pool_filter=pool):
        if (alone or run.work_queue_name == here) and not _has_process(run):
            gone: State[Any] = Crashed(message="Its process ended without reporting a result.")
            await client.set_flow_run_state(run.id, gone, force=True)


def _has_process(run: FlowRun) -> bool:
    try:
        born = psutil.Process(int(run.infrastructure_pid or 0)).create_time()
    except (psutil.NoSuchProcess, ValueError):
        return False
    # A process that is younger than the run has only got the same number.
    return run.start_time is None or born <= run.start_time.timestamp()


def crash_of_the_silent() -> AutomationCore:
    """After a reboot or a `kill -9`, a flow run would be `Running` for ever: this automation calls it crashed."""
    return AutomationCore(
        name="Crash flow runs whose process is gone",
        description=f"No heartbeat for {SILENCE.total_seconds():g} seconds. Made by Refit.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after={_HEARTBEAT},
            expect={_HEARTBEAT, *(f"prefect.flow-run.{state}" for state in _ENDS)},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            threshold=1,
            within=SILENCE,
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message="Its process is gone: no heartbeat came.")],
    )


def when_published(deployment: UUID) -> AutomationCore:
    """Each image that was published runs a deployment; a run that finds another one at work leaves it all to that."""
    return AutomationCore(
        name="Begin a migration when an image is published",
        description="The setting `when_published` of migrations. Made by Refit.",
        trigger=EventTrigger(
            posture=Posture.Reactive, expect={EVENT}, match={"prefect.resource.id": "refit.profile.*"}, threshold=1
        ),
        actions=[RunDeployment(source="selected", deployment_id=deployment, parameters={})],
    )


async def _automation(client: PrefectClient, wished: AutomationCore, exists: bool = True) -> None:
    existing = await client.read_automations_by_name(wished.name)
    for automation in existing:
        if not exists:
            await client.delete_automation(automation.id)
        elif _meaning(automation) != _meaning(wished):
            await client.update_automation(automation.id, wished)
    if exists and not existing:
        await client.create_automation(wished)


def _meaning(automation: AutomationCore) -> dict[str, Any]:
    """The parts that a person could have changed; the server adds ids of its own."""
    parts = automation.model_dump(mode="json", include={"enabled", "trigger", "actions"})
    trigger = {k: sorted(v) if isinstance(v, list) else v for k, v in parts["trigger"].items() if k != "id"}
    return {**parts, "trigger": trigger}
