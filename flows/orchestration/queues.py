"""One queue of builds per operating system, so that one can be paused, purged or drained without touching the others.

Each is a Prefect work pool. A run elsewhere, at a shell or as part of a whole release, bears the system as a tag.
"""

import operator
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, WorkPool
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling
from pydantic import BaseModel, ValidationError

from flows.catalog.model import Base
from flows.core import progress
from flows.core.database import now
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.host import tools
from flows.services.prefect_services import BASE_JOB_TEMPLATE, POOL

WAITING = (StateType.SCHEDULED, StateType.PENDING)
UNDER_WAY = (StateType.RUNNING, StateType.CANCELLING)
# Program that a machine needs to make the bases of a family.
_MAKERS = {"deb": "mmdebstrap", "rpm": "dnf"}
_BUILDS = "builds"
PAGE = 200  # the most that the server gives at once
_POLL_SECONDS = 1.0


class _Builds(BaseModel):
    """The part of an operating system's work pool about the machines that can build for it."""

    family: str = ""
    architecture: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Queue:
    """The builds of one operating system.

    Attributes:
        system: its name in the catalog, e.g. `deb12`.
        paused: nothing new starts.
        waiting: runs that are due, or that a person has asked for.
        running: runs that build for it, wherever they were started.
        workers: names of the workers that take runs from it now.
    """

    system: str
    paused: bool
    waiting: int
    running: int
    workers: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One run in a queue, and what Prefect calls its state."""

    id: UUID
    name: str
    state: str


# --- Which there are ------------------------------------------------------------------------------------------------


def pool_of(system: str) -> str:
    """Name of the work pool of an operating system."""
    return f"{POOL}-{system}"


def system_of(pool: str) -> str:
    """The operating system of a work pool; empty: it is none of ours, or the one of all other work."""
    return pool.removeprefix(f"{POOL}-") if pool.startswith(f"{POOL}-") else ""


def worker_of(machine: str) -> str:
    """The name of the worker on a machine, in all pools."""
    return f"{POOL}@{machine}"


def is_ours(pool: str) -> bool:
    """Whether a work pool belongs to Refit."""
    return pool == POOL or bool(system_of(pool))


def template(base: Base) -> dict[str, Any]:
    """The template of a base's work pool: how runs start, and what a machine must have to build for it."""
    config, architecture = base.config, platform.machine()
    builds = {"family": config.family, "architecture": architecture, "needs": [*config.needs]}
    return {**BASE_JOB_TEMPLATE, _BUILDS: builds}


def obstacle(system: str, template: Mapping[str, Any], settings: Settings) -> str:
    """Why this machine can't build for an operating system; empty: it can.

    Args:
        system: its name.
        template: the job template of its pool.
        settings: `build_targets` are the only systems that this machine shall build for, `capabilities` what it has.
    """
    try:
        builds = _Builds.model_validate(template.get(_BUILDS, {}))
    except ValidationError:  # whoever is logged in can write it
        return "its work pool doesn't say what a machine needs"
    maker = _MAKERS.get(builds.family)
    if settings.build_targets and system not in settings.build_targets:
        return f"`build_targets` names only {', '.join(settings.build_targets)}"
    if builds.architecture not in ("", platform.machine()):
        return f"it is for {builds.architecture}, and this machine is {platform.machine()}"
    if maker and not tools.program(maker):
        return f"{maker} is not installed"
    if lacking := [need for need in builds.needs if need not in settings.capabilities]:
        return f"it needs {', '.join(lacking)}, which this machine's `capabilities` don't name"
    return ""


def servable(pools: Iterable[WorkPool], settings: Settings) -> tuple[str, ...]:
    """The names of the work pools whose runs a worker on this machine can take."""
    return tuple(
        pool.name
        for pool in pools
        if (system := system_of(pool.name)) and not obstacle(system, pool.base_job_template, settings)
    )


def machines(client: SyncPrefectClient, system: str) -> tuple[str, ...]:
    """The machines whose workers take builds for an operating system now."""
    try:
        workers = client.read_workers_for_work_pool(pool_of(system))
    except ObjectNotFound:
        return ()
    return tuple(sorted(worker.name.partition("@")[2] for worker in workers if worker.status == "ONLINE"))


def queues() -> tuple[Queue, ...]:
    """All queues by name."""
    with get_client(sync_client=True) as client:
        pools = client.read_work_pools(limit=PAGE)
        return tuple(_queue(client, pool) for pool in sorted(pools, key=lambda p: p.name) if system_of(pool.name))


def _queue(client: SyncPrefectClient, pool: WorkPool) -> Queue:
    system = system_of(pool.name)
    workers = client.read_workers_for_work_pool(pool.name)
    return Queue(
        system=system,
        paused=pool.is_paused,
        waiting=len(_waiting(client, system)),
        running=len(_running(client, system)),
        workers=tuple(sorted(worker.name for worker in workers if worker.status == "ONLINE")),
    )


# --- The verbs ------------------------------------------------------------------------------------------------------


def pause(system: str) -> None:
    """Pause a queue: no run starts; running ones go on, queued ones stay queued.

    Raises:
        UnknownName: there is no such queue.
    """
    with _pool(system) as (client, pool):
        client.update_work_pool(pool.name, WorkPoolUpdate(is_paused=True))


def resume(system: str) -> None:
    """Let runs start again, those first that wait longest.

    Raises:
        UnknownName: there is no such queue.
    """
    with _pool(system) as (client, pool):
        client.update_work_pool(pool.name, WorkPoolUpdate(is_paused=False))


def purge(system: str, *, dry_run: bool) -> tuple[Run, ...]:
    """Cancel what is queued and does not run yet; returns what was, or would be, cancelled.

    The runs of a schedule for later nights stay: cancelled, those nights would never come back.

    Raises:
        UnknownName: there is no such queue.
    """
    with _pool(system) as (client, _):
        return tuple(_plain(run) for run in _waiting(client, system) if dry_run or _cancel(client, run))


def _cancel(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether it was still waiting; a worker may have started it since it was listed."""
    state = client.read_flow_run(run.id).state
    if state is None or state.type not in WAITING:
        return False
    # Where no process was started for it yet, the server makes this Cancelled at once.
    cancelling: State[Any] = Cancelling(message="Its queue was purged.")
    client.set_flow_run_state(run.id, cancelling)
    return True


def drain(system: str, limit: float) -> None:
    """Pause a queue, and wait until nothing runs in it any more. It stays paused.

    Args:
        system: name of the operating system.
        limit: seconds to wait at most.

    Raises:
        UnknownName: there is no such queue.
        RefitError: something still runs after `limit` seconds.
    """
    pause(system)
    with get_client(sync_client=True) as client, progress.reported(system, "paused"):

        def unfinished() -> str:
            if names := ", ".join(run.name for run in _unfinished(client, system)):
                progress.report(system, progress.State.running, f"paused; still running: {names}")
            return names

        if names := wait_until(unfinished, enough=operator.not_, seconds=limit, pause=_POLL_SECONDS):
            raise RefitError(
                f"{system} is paused, but not drained after {limit:g} s.",
                why=f"Still running: {names}.",
                hint=f"give it more time with --timeout, or cancel them; `refit queue resume {system}` reopens it.",
            )


# --- Asking the server ----------------------------------------------------------------------------------------------


@contextmanager
def _pool(system: str) -> Iterator[tuple[SyncPrefectClient, WorkPool]]:
    with get_client(sync_client=True) as client:
        try:
            pool = client.read_work_pool(pool_of(system))
        except ObjectNotFound:
            systems = filter(None, (system_of(pool.name) for pool in client.read_work_pools(limit=PAGE)))
            raise UnknownName(
                "queue", system, systems, where="Prefect (`refit serve` makes those of the catalog)"
            ) from None
        yield client, pool


def _waiting(client: SyncPrefectClient, system: str) -> list[FlowRun]:
    """Runs that are due or were asked for by a person, first come first."""
    runs = _runs(client, WAITING, pool=pool_of(system))
    due = [run for run in runs if not run.auto_scheduled or (run.expected_start_time or now()) <= now()]
    return sorted(due, key=lambda run: run.expected_start_time or now())


def _running(client: SyncPrefectClient, system: str) -> list[FlowRun]:
    name = pool_of(system)
    runs = [*_runs(client, UNDER_WAY, pool=name), *_runs(client, UNDER_WAY, tag=name)]
    return list({run.id: run for run in runs}.values())


def _unfinished(client: SyncPrefectClient, system: str) -> list[FlowRun]:
    """The runs that go on, and those that a worker has taken before the pause and is about to start."""
    return [*_runs(client, (StateType.PENDING,), pool=pool_of(system)), *_running(client, system)]


def _runs(client: SyncPrefectClient, states: Iterable[StateType], *, pool: str = "", tag: str = "") -> list[FlowRun]:
    filters = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[*states])),
        tags=FlowRunFilterTags(all_=[tag]) if tag else None,
    )
    where = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])) if pool else None
    runs: list[FlowRun] = []
    while len(page := client.read_flow_runs(flow_run_filter=filters, work_pool_filter=where, offset=len(runs))):
        runs += page
    return runs


def _plain(run: FlowRun) -> Run:
    return Run(run.id, run.name, run.state_name or "")
