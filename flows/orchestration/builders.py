"""Call builders for a run: a flow run on each of several machines, until that run is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.host import containers
from flows.images.builder.workspace import recover
from flows.orchestration import builder_jobs
from flows.orchestration.queues import machines, pool_of
from flows.sessions.kubernetes.builder_job import check_shared

DEPLOYMENT = "refit"


def call_builders(run: str, systems: Iterable[str], settings: Settings) -> dict[str, tuple[str, ...]]:
    """Start a builder on as many machines as the settings say for each system, or so many Jobs; builder → systems.

    Raises:
        RefitError: builders aren't offered, for `refit serve` has not been called.
    """
    if settings.kubernetes.builder_job:
        return _call_jobs(run, tuple(sorted(systems)), settings)
    with get_client(sync_client=True) as client:
        called = chosen({system: machines(client, system) for system in systems}, settings.builders)
        for machine, mine in called.items():
            client.create_flow_run_from_deployment(
                _deployment(client, DEPLOYMENT),
                parameters={"run": run, "systems": [*mine]},
                tags=[pool_of(system) for system in mine],
                work_queue_name=machine,
            )
    return called


def chosen(machines: Mapping[str, Collection[str]], at_most: int) -> dict[str, tuple[str, ...]]:
    """Which machines build for what: machine → systems.

    Args:
        machines: system → the machines that can build for it.
        at_most: how many of them shall, for each system; better those that build for another one anyway.
    """
    chosen: dict[str, tuple[str, ...]] = {}
    for system in sorted(machines, key=lambda system: (len(machines[system]), system)):
        for machine in sorted(machines[system], key=lambda machine: (machine not in chosen, machine))[:at_most]:
            chosen[machine] = (*chosen.get(machine, ()), system)
    return chosen


def _call_jobs(run: str, systems: tuple[str, ...], settings: Settings) -> dict[str, tuple[str, ...]]:
    """Start so many builders as Jobs of a cluster; each builds for all systems.

    Raises:
        RefitError: they could reach nothing of what they share with Refit, or aren't offered.
    """
    check_shared(settings)
    builder_jobs.Jobs(settings).check()
    with get_client(sync_client=True) as client:
        runs = [
            client.create_flow_run_from_deployment(
                _deployment(client, builder_jobs.DEPLOYMENT),
                parameters={"run": run, "systems": [*systems]},
                tags=[pool_of(system) for system in systems],
            )
            for _ in range(settings.builders)
        ]
    return {each.name: systems for each in runs}


def _deployment(client: SyncPrefectClient, name: str) -> UUID:
    try:
        return client.read_deployment_by_name(f"build-stages/{name}").id
    except ObjectNotFound:
        raise RefitError(f"There is no deployment build-stages/{name}.", hint="`refit serve` makes it.") from None


def clear_away(flow: Any, flow_run: Any, state: Any) -> None:
    """After a run that was cancelled or killed: end what it started, remove its containers and mounts.

    Prefect calls it in the worker, by these names of parameters.
    """
    settings = load_settings()
    recover(settings)
    containers.remove_orphans(settings)
