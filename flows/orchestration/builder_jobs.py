"""Builders as Jobs of a cluster: a worker that makes one for each flow run in a pool of its own, and removes it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import anyio
import httpx
from anyio.abc import TaskStatus
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled
from prefect.workers.base import BaseWorkerResult

from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.settings import Settings, load
from flows.orchestration.own_worker import OwnJob, OwnWorker
from flows.services.prefect_services import POLL
from flows.sessions.kubernetes.builder_job import BUILDER, RUN, manifest, template
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.kinds import JOBS
from flows.sessions.kubernetes.manifests import KIND, ClusterOptions
from flows.sessions.kubernetes.refusals import ClusterError

POOL = "refit_builders"  # no name of an operating system's
DEPLOYMENT = "jobs"
# A Job that has ended is removed by the worker that follows it, within seconds.
_LEFT_OVER = timedelta(hours=1)
_PAUSE_SECONDS = 60.0
# Its Pods are told to end, and have `terminationGracePeriodSeconds` of the template for it.
_END_SECONDS = 120.0


def ended(job: Mapping[str, Any] | None) -> int | None:
    """The exit code that stands for how a Job has ended; none: it hasn't. Pure."""
    if job is None:
        return 1
    true = _true_conditions(job)
    return 0 if "Complete" in true else 1 if "Failed" in true else None


def is_left_over(job: Mapping[str, Any], moment: datetime) -> bool:
    """Whether a Job has ended so long ago that its worker would have removed it. Pure."""
    ends = [at for kind, at in _true_conditions(job).items() if kind in ("Complete", "Failed")]
    return any(at and moment - datetime.fromisoformat(at) > _LEFT_OVER for at in ends)


def _true_conditions(job: Mapping[str, Any]) -> dict[str, str]:
    """Those that hold → since when."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return {each["type"]: each.get("lastTransitionTime") or "" for each in conditions if each["status"] == "True"}


def runs(jobs: Iterable[Mapping[str, Any]]) -> dict[UUID, str]:
    """Flow run → its Job. Pure."""
    by_run = dict[UUID, str]()
    for metadata in (job["metadata"] for job in jobs):
        with suppress(ValueError, LookupError):  # another program has made it
            by_run[UUID(metadata["labels"][RUN])] = metadata["name"]
    return by_run


class Jobs:
    """The Jobs of builders in the namespace that the template names."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is read, and nothing asked of the cluster yet."""
        self._settings = settings

    @cached_property
    def _cluster(self) -> Cluster:
        job = template(self._file)
        return Cluster(replace(ClusterOptions.of(self._settings), namespace=job["metadata"]["namespace"]))

    @property
    def _file(self) -> Path:
        if self._settings.kubernetes.builder_job is None:
            raise RefitError("`kubernetes.builder_job` names no Job of builders.", hint="see deploy/builder/job.yaml.")
        return self._settings.kubernetes.builder_job

    def check(self) -> None:
        """Look at the template.

        Raises:
            RefitError: it can't be used.
        """
        template(self._file)

    def create(self, run: UUID) -> str:
        """Make the Job of a flow run, and remove those that nobody has removed; returns its name.

        Raises:
            RefitError: the template can't be used.
            ClusterError: the API server doesn't answer, or refuses.
        """
        made, moment = manifest(template(self._file), run), now()
        for job in self.all():
            own = job["metadata"]["name"] == made["metadata"]["name"]
            if is_left_over(job, moment) or (own and ended(job) is not None):
                self._remove(job)
        self._cluster.ensure(JOBS, made)
        return str(made["metadata"]["name"])

    def all(self) -> list[dict[str, Any]]:
        """The Jobs of builders; another one in that namespace is none of them.

        Raises:
            RefitError: the template can't be used.
            ClusterError: the API server doesn't answer, or refuses.
        """
        return self._cluster.list(JOBS, **{KIND: BUILDER})

    def exit_code(self, name: str) -> int | None:
        """How a Job has ended; none: it hasn't, or nobody can tell now."""
        try:
            return ended(self._cluster.find(JOBS, name))
        except ClusterError:  # the next look may be luckier
            return None

    def is_there(self, name: str) -> bool:
        """Whether there is such a Job, or nobody can tell now."""
        try:
            return self._cluster.find(JOBS, name) is not None
        except ClusterError:  # the next look may be luckier
            return True

    def remove(self, name: str, *, after_pods: bool = False) -> None:
        """Remove a builder's Job, with what runs in it. The name may be anybody's word: no other Job is removed.

        Args:
            name: of the Job.
            after_pods: it stays there until its Pods have gone.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        for job in self.all():
            if job["metadata"]["name"] == name:
                self._remove(job, "Foreground" if after_pods else "Background")

    def _remove(self, job: Mapping[str, Any], propagation: str = "Background") -> None:
        self._cluster.delete(JOBS, job["metadata"]["name"], uid=job["metadata"]["uid"], propagation=propagation)


class JobOfBuilder(OwnJob):
    """A Job of a cluster; it is as the template says."""


class JobWorker(OwnWorker, ABC):
    """Makes a Job for each flow run, and follows it to its end."""

    type = "kubernetes"
    job_configuration = JobOfBuilder

    def __init__(self, **chosen: Any) -> None:
        super().__init__(**chosen)
        self._followed = set[UUID]()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        assert self._runs_task_group
        self._runs_task_group.start_soon(self._adopt)
        return self

    async def run(
        self, flow_run: FlowRun, configuration: JobOfBuilder, task_status: TaskStatus[Any] | None = None
    ) -> BaseWorkerResult:
        """Let a Job do what was admitted, until it has ended or the run is cancelled."""
        jobs = Jobs(load())
        self._followed.add(flow_run.id)
        name = await anyio.to_thread.run_sync(partial(jobs.create, flow_run.id))
        (task_status or anyio.TASK_STATUS_IGNORED).started(name)
        return BaseWorkerResult(identifier=name, status_code=await self._follow(jobs, name, flow_run.id))

    async def _adopt(self) -> None:
        """Follow the Jobs that are there when this worker starts: the worker that made them may be gone."""
        jobs = Jobs(load())
        while True:
            try:
                unfinished = runs(await anyio.to_thread.run_sync(jobs.all))
                break
            except Exception as error:  # new Jobs are made all the same
                self._logger.warning("The Jobs of builders can't be listed: %s", error)
                await anyio.sleep(_PAUSE_SECONDS)
        async with anyio.create_task_group() as group:
            for run in {*unfinished} - self._followed:
                self._followed.add(run)
                group.start_soon(self._adopted, jobs, unfinished[run], run)

    async def _adopted(self, jobs: Jobs, name: str, run: UUID) -> None:
        try:
            if code := await self._follow(jobs, name, run):
                message = f"Its Job has ended with exit code {code}."
                await self._propose_crashed_state(await self.client.read_flow_run(run), message)
        except Exception:  # one Job takes no others along
            self._logger.exception("The Job %s can't be followed.", name)

    async def _follow(self, jobs: Jobs, name: str, run: UUID) -> int:
        """Wait until a Job has ended or its run is cancelled, and remove it; returns its exit code."""
        while (code := await anyio.to_thread.run_sync(partial(jobs.exit_code, name))) is None:
            if await self._is_cancelled(run):
                await self._end_cancelled(jobs, name, run)
                return 0
            await anyio.sleep(POLL)
        with suppress(ClusterError):  # a builder's worker tries again, later
            await anyio.to_thread.run_sync(partial(jobs.remove, name))
        return code

    async def _end_cancelled(self, jobs: Jobs, name: str, run: UUID) -> None:
        """Remove the Job of a run that is cancelled. Its process, told to end, calls the run crashed."""
        with suppress(ClusterError):  # as above
            await anyio.to_thread.run_sync(partial(jobs.remove, name, after_pods=True))
        with anyio.move_on_after(_END_SECONDS):
            while await anyio.to_thread.run_sync(partial(jobs.is_there, name)):
                await anyio.sleep(POLL)
        with suppress(ObjectNotFound, httpx.HTTPError):
            state = (await self.client.read_flow_run(run)).state
            if state is not None and state.type is StateType.CRASHED:
                await self._cancel(run)

    async def _cancel(self, run: UUID) -> None:
        await self.client.set_flow_run_state(run, Cancelled(message="Its Job was removed."), force=True)

    async def _is_cancelled(self, run: UUID) -> bool:
        """Whether somebody wants a run to end that can't hear it by itself; then it counts as cancelled."""
        try:
            state = (await self.client.read_flow_run(run)).state
            if state is None or state.type not in (StateType.CANCELLING, StateType.CANCELLED):
                return False
            if state.type is StateType.CANCELLING:
                await self._cancel(run)
        except ObjectNotFound:
            pass
        except httpx.HTTPError as error:  # the next look may be luckier
            self._logger.warning("The server doesn't tell whether run %s is cancelled: %s", run, error)
            return False
        return True

    async def kill_infrastructure(
        self, infrastructure_pid: str, configuration: JobOfBuilder, grace_seconds: int = 30
    ) -> None:
        """Remove the Job of a run that was cancelled before it began."""
        await anyio.to_thread.run_sync(partial(Jobs(load()).remove, infrastructure_pid))
