"""Offer the flows in Prefect's UI: work pool, deployments, and an end for runs whose process is gone.

Each can be repeated; what is as it should be is left alone. Schedules that a person made in the UI stay.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import psutil
from prefect import Flow, get_client
from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed
from prefect.utilities.callables import parameter_schema

from flows.services.embedded import BASE_JOB_TEMPLATE, HEARTBEAT, POOL

DEPLOYMENT = "refit"
# A flow run that is not seen for this long is taken for dead: three heartbeats, so that one may be late.
SILENCE = timedelta(seconds=3 * HEARTBEAT)
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Suspended", "Paused")


def deploy(flows: Iterable[Flow[..., Any]]) -> tuple[str, ...]:
    """Make work pool, deployments and automation as they should be; the names of the deployments.

    Runs that a power cut or `refit down` ended are called crashed: the automation sees only what a server that was
    up could see.

    The process must have been given `services.prefect_environment` before it imported this module. A flow has to lie
    in an installed module: a run imports it from there, so that there is no code to be fetched.
    """
    return asyncio.run(_deploy(tuple(flows)))


async def _deploy(flows: tuple[Flow[..., Any], ...]) -> tuple[str, ...]:
    async with get_client() as client:
        await _work_pool(client)
        await _automation(client, crash_of_the_silent())
        await _settle(client)
        return tuple([await _deployment(client, flow) for flow in flows])


async def _work_pool(client: PrefectClient) -> None:
    template = dict(BASE_JOB_TEMPLATE)
    try:
        pool = await client.read_work_pool(POOL)
    except ObjectNotFound:
        await client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
        return
    if pool.base_job_template != template:
        await client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=template))


async def _deployment(client: PrefectClient, flow: Flow[..., Any]) -> str:
    await client.create_deployment(
        flow_id=await client.create_flow(flow),
        name=DEPLOYMENT,
        description=flow.description,
        entrypoint=f"{flow.fn.__module__}:{flow.fn.__name__}",
        work_pool_name=POOL,
        parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
        enforce_parameter_schema=True,
    )
    return f"{flow.name}/{DEPLOYMENT}"


async def _settle(client: PrefectClient) -> None:
    """Crash the runs that are under way for the server and have no process on this machine any more."""
    under_way = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING]))
    )
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    for run in await client.read_flow_runs(flow_run_filter=under_way, work_pool_filter=pool):
        if not _has_process(run):
            gone: State[Any] = Crashed(message="Its process ended without a word.")
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


async def _automation(client: PrefectClient, wanted: AutomationCore) -> None:
    known = await client.read_automations_by_name(wanted.name)
    for automation in known:
        if _meaning(automation) != _meaning(wanted):
            await client.update_automation(automation.id, wanted)
    if not known:
        await client.create_automation(wanted)


def _meaning(automation: AutomationCore) -> dict[str, Any]:
    """What a person could have changed; the server adds ids of its own."""
    parts = automation.model_dump(mode="json", include={"enabled", "trigger", "actions"})
    trigger = {k: sorted(v) if isinstance(v, list) else v for k, v in parts["trigger"].items() if k != "id"}
    return {**parts, "trigger": trigger}
