"""The worker: takes runs from the pool of all work, and from those of the operating systems that it can build for.

In the pool of all work, each machine has a queue of its own as well: runs there are for this machine alone.

It is a program of its own and not `prefect worker start`, which would be a process of 140 MB for each of the pools, and
would run whatever a deployment says. This one runs Refit's own flows alone, each as `orchestration.attempt`: code
that a deployment, a run or a pool brings along is refused or left unread, by whomever it was written.
"""

import asyncio
import logging
import shlex
import signal
import sys
import tempfile
from abc import ABC
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import httpx
from anyio.abc import TaskStatus
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.runner._flow_run_executor import FlowRunExecutionResult, FlowRunExecutor, FlowRunExecutorContext
from prefect.runner._process_manager import ProcessHandle
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.states import Failed
from prefect.workers.base import BaseWorker, BaseWorkerResult
from prefect.workers.process import (
    ProcessJobConfiguration,
    ProcessWorker,
    ProcessWorkerResult,
)

from flows.core.settings import Settings, load
from flows.orchestration import asked_builds, offered, queues
from flows.services.prefect_services import BASE_JOB_TEMPLATE, POLL, POOL

_FOR_ALL = "default"  # Prefect's name for the queue of whoever chose none
_log = logging.getLogger("prefect.refit")
# The process of a run. Its own folder is no place to import from.
ATTEMPT = (sys.executable, "-P", "-m", "flows.orchestration.attempt")


class Job(ProcessJobConfiguration):
    """How a run is started: as this says, and nothing of what pool, deployment or run say."""

    @classmethod
    async def resolve_for_flow_run(
        cls,
        flow_run: FlowRun,
        *,
        client: PrefectClient,
        work_pool: WorkPool,
        worker_name: str,
        worker_id: UUID | None = None,
        deployment: DeploymentResponse | None = None,
    ) -> "Job":
        """Values that Prefect's worker takes from the server's templates and variables are defaults here."""
        if deployment is None and flow_run.deployment_id:
            deployment = await client.read_deployment(flow_run.deployment_id)
        job, flow = cls(), await client.read_flow(flow_run.flow_id)
        job.prepare_for_flow_run(flow_run, deployment, flow, work_pool, worker_name, worker_id)
        return job


class Worker(ProcessWorker, ABC):  # by ABC, Prefect doesn't take it for one more type of workers
    """A worker that runs Refit's own flows and nothing else."""

    job_configuration = Job

    def __init__(self, **chosen: Any) -> None:
        super().__init__(**chosen)
        self._admitted: dict[UUID, str] = {}

    async def __aenter__(self) -> "Worker":
        # Prefect's also starts what runs flows that are handed to it as pickles, with a port to listen on.
        return await BaseWorker.__aenter__(self)

    async def __aexit__(self, *error: Any) -> None:
        await BaseWorker.__aexit__(self, *error)

    async def _submit_run(self, flow_run: FlowRun) -> None:
        try:
            await super()._submit_run(flow_run)
        except Exception:  # one run that can't be looked at takes no others along
            self._logger.exception("Flow run %s can't be submitted now.", flow_run.id)
            self._submitting_flow_run_ids.discard(flow_run.id)

    async def _submit_run_and_capture_errors(
        self, flow_run: FlowRun, task_status: TaskStatus[int | Exception] | None = None
    ) -> BaseWorkerResult | Exception:
        try:
            self._admitted[flow_run.id] = offered.admit(flow_run, await self._deployment(flow_run))
        except offered.Refused as refused:
            await self._fail(flow_run, str(refused))
            if task_status:
                task_status.started(refused)
            return refused
        try:
            return await super()._submit_run_and_capture_errors(flow_run, task_status)
        finally:
            self._admitted.pop(flow_run.id, None)

    async def _deployment(self, run: FlowRun) -> DeploymentResponse | None:
        with suppress(ObjectNotFound):
            return await self.client.read_deployment(run.deployment_id) if run.deployment_id else None
        return None

    async def _fail(self, run: FlowRun, why: str) -> None:
        self.get_flow_run_logger(run).error(why)
        with suppress(ObjectNotFound):
            await self.client.set_flow_run_state(run.id, Failed(message=why), force=True)

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        """Run what was admitted, until its process ends."""
        argv = [*ATTEMPT, self._admitted[flow_run.id]]
        with tempfile.TemporaryDirectory(suffix="refit") as folder:
            async with FlowRunExecutorContext() as context:
                starter = EngineCommandStarter(
                    command=shlex.join(argv),
                    cwd=folder,
                    env=configuration.env,
                    control_channel=context.control_channel,
                    # A run that is cancelled ends with all that it started.
                    isolate_process_group=True,
                    env_overrides_settings=True,
                )
                executor = context.create_executor(
                    flow_run,
                    starter,
                    propose_submitting=False,
                    hook_runner=Hooks(argv, Path(folder), configuration.env),
                )
                ended = await _followed(executor, task_status or anyio.TASK_STATUS_IGNORED)
        if ended is None or ended.status_code is None:
            raise RuntimeError("The process of the run has not started.")
        return ProcessWorkerResult(status_code=ended.status_code, identifier=str(ended.handle.pid))


async def _followed(executor: FlowRunExecutor, told: TaskStatus[int]) -> FlowRunExecutionResult | None:
    """How a run's process ended; its pid is told as soon as it has one."""
    ended: FlowRunExecutionResult | None = None

    async def follow(*, task_status: TaskStatus[ProcessHandle]) -> None:
        nonlocal ended
        ended = await executor.submit(task_status=task_status)

    async with anyio.create_task_group() as group:
        handle: ProcessHandle = await group.start(follow)
        if handle.pid is not None:
            told.started(handle.pid)
    return ended


class Hooks:
    """Calls what a flow wants to have called after a run that was cancelled or killed, in a process of its own."""

    def __init__(self, attempt: list[str], folder: Path, environment: dict[str, str | None]) -> None:
        self._attempt, self._folder = attempt, folder
        self._environment = {name: value for name, value in environment.items() if value is not None}

    async def run_cancellation_hooks(self, flow_run: FlowRun, state: State[Any]) -> None:
        """After a run that was cancelled."""
        await self._call("cancellation", flow_run, state)

    async def run_crashed_hooks(self, flow_run: FlowRun, state: State[Any]) -> None:
        """After a run whose process ended without a word."""
        await self._call("crashed", flow_run, state)

    async def _call(self, hooks: str, run: FlowRun, state: State[Any]) -> None:
        done = await anyio.run_process(
            [*self._attempt, hooks],
            input=state.model_dump_json().encode(),
            cwd=self._folder,
            env=self._environment,
            stdout=None,
            stderr=None,
            check=False,
        )
        if done.returncode:
            _log.warning("The hooks of run %s failed: exit code %s.", run.id, done.returncode)


async def work(settings: Settings) -> None:
    """Serve the pools until this is cancelled; one that is made later is found as well."""
    served = set[str]()
    async with anyio.create_task_group() as group, get_client() as client:
        group.start_soon(asked_builds.watch, client, settings)
        while True:
            for pool in await _pools(client, settings) - served:
                served.add(pool)
                group.start_soon(_serve, client, pool, settings.machine_name, served)
            await anyio.sleep(POLL)


async def _pools(client: PrefectClient, settings: Settings) -> set[str]:
    """Those that this machine serves, its own among them."""
    try:
        return {POOL, *queues.servable(await client.read_work_pools(limit=queues.PAGE), settings)}
    except httpx.HTTPError as error:
        _log.warning("The server doesn't tell which pools there are: %s", error)
        return {POOL}


async def _own_queue(client: PrefectClient, machine: str) -> None:
    """A worker that takes from chosen queues makes neither these nor their pool."""
    with suppress(ObjectAlreadyExists):
        await client.create_work_pool(
            WorkPoolCreate(name=POOL, type="process", base_job_template={**BASE_JOB_TEMPLATE})
        )
    with suppress(ObjectAlreadyExists):
        await client.create_work_queue(machine, work_pool_name=POOL)


async def _serve(client: PrefectClient, pool: str, machine: str, served: set[str]) -> None:
    """Serve a pool until it is gone or its server is: both end nothing of the other pools."""
    try:
        if pool == POOL:
            await _own_queue(client, machine)
        only = [_FOR_ALL, machine] if pool == POOL else None
        name = queues.worker_of(machine)
        await Worker(work_pool_name=pool, work_queues=only, name=name, create_pool_if_not_found=False).start()
    except Exception as error:
        _log.warning("The pool %s isn't served for now: %r", pool, error)
    finally:
        served.discard(pool)


async def _until_told_to_end() -> None:
    task = asyncio.current_task()
    assert task
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await work(load())


def main() -> None:
    """Serve the pools until this process is told to end."""
    try:
        asyncio.run(_until_told_to_end())
    except asyncio.CancelledError:
        _log.info("The worker has ended.")


if __name__ == "__main__":
    main()
