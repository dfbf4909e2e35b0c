"""The base of Refit's workers: they take Refit's own flows, and start each as Refit says.

Everybody who is logged in to Prefect's server can write any pool, deployment and run.
"""

from abc import ABC
from contextlib import suppress
from typing import Any, Self
from uuid import UUID

from anyio.abc import TaskStatus
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.states import Failed
from prefect.workers.base import BaseJobConfiguration, BaseWorker, BaseWorkerResult

from flows.orchestration import offered


class OwnJob(BaseJobConfiguration):
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
    ) -> Self:
        """Values that Prefect's worker takes from the server's templates and variables are defaults here."""
        if deployment is None and flow_run.deployment_id:
            deployment = await client.read_deployment(flow_run.deployment_id)
        job, flow = cls(), await client.read_flow(flow_run.flow_id)
        job.prepare_for_flow_run(flow_run, deployment, flow, work_pool, worker_name, worker_id)
        return job


class OwnWorker(BaseWorker[Any, Any, Any], ABC):  # by ABC, Prefect doesn't take it for one more type of workers
    """A worker that runs Refit's own flows and nothing else."""

    def __init__(self, **chosen: Any) -> None:
        super().__init__(**chosen)
        self._admitted: dict[UUID, str] = {}

    async def __aenter__(self) -> Self:
        # That of a process worker also starts what runs flows that come as pickles, with a port to listen on.
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
