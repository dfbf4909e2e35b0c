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

import anyio
import httpx
from anyio.abc import TaskStatus
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import ObjectAlreadyExists
from prefect.runner._flow_run_executor import FlowRunExecutionResult, FlowRunExecutor, FlowRunExecutorContext
from prefect.runner._process_manager import ProcessHandle
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.workers.process import (
    ProcessJobConfiguration,
    ProcessWorker,
    ProcessWorkerResult,
)

from flows.core.settings import Settings, load
from flows.orchestration import asked_builds, builder_jobs, queues
from flows.orchestration.own_worker import OwnJob, OwnWorker
from flows.services.prefect_services import BASE_JOB_TEMPLATE, POLL, POOL

_FOR_ALL = "default"  # Prefect's name for the queue of whoever chose none
_log = logging.getLogger("prefect.refit")
# The process of a run. Its own folder is no place to import from.
ATTEMPT = (sys.executable, "-P", "-m", "flows.orchestration.attempt")


class Job(OwnJob, ProcessJobConfiguration):
    """A process on this machine."""


class Worker(OwnWorker, ProcessWorker, ABC):
    """Runs each flow in a process of its own."""

    job_configuration = Job

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


async def _followed(executor: FlowRunExecutor, status: TaskStatus[int]) -> FlowRunExecutionResult | None:
    """How a run's process ended; its pid is told as soon as it has one."""
    ended: FlowRunExecutionResult | None = None

    async def follow(*, task_status: TaskStatus[ProcessHandle]) -> None:
        nonlocal ended
        ended = await executor.submit(task_status=task_status)

    async with anyio.create_task_group() as group:
        handle: ProcessHandle = await group.start(follow)
        if handle.pid is not None:
            status.started(handle.pid)
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
    own = {POOL, builder_jobs.POOL} if settings.kubernetes.builder_job else {POOL}
    try:
        return {*own, *queues.servable(await client.read_work_pools(limit=queues.PAGE), settings)}
    except httpx.HTTPError as error:
        _log.warning("The server doesn't tell which pools there are: %s", error)
        return own


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
        kind = builder_jobs.JobWorker if pool == builder_jobs.POOL else Worker
        await kind(work_pool_name=pool, work_queues=only, name=name, create_pool_if_not_found=False).start()
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
