"""The worker's part in builds that people have asked for: while some wait, it lets a run of this machine build them."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from prefect.client.orchestration import PrefectClient

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.migrations.notifications import own_builds
from flows.orchestration import queues
from flows.publishing.own_build_requests import BuildRequests
from flows.services.prefect_services import POLL

_DEPLOYMENT = "build-asked-profiles/refit"
_log = logging.getLogger("prefect.refit")


async def watch(client: PrefectClient, settings: Settings) -> None:
    """Look at the queue every few seconds, until this is cancelled."""
    requests = BuildRequests(open_database(settings.database))
    run: UUID | None = None
    while True:
        try:
            if await asyncio.to_thread(_due, settings, requests) and not (run and await _is_to_start(client, run)):
                deployment = await client.read_deployment_by_name(_DEPLOYMENT)
                here = settings.machine_name
                run = (await client.create_flow_run_from_deployment(deployment.id, work_queue_name=here)).id
        except Exception as error:  # it is tried again, and ends nothing else
            _log.warning("Builds that people have asked for aren't begun now: %r", error)
            run = None
        await asyncio.sleep(POLL)


async def _is_to_start(client: PrefectClient, run: UUID) -> bool:
    state = (await client.read_flow_run(run)).state
    return state is not None and state.type in queues.WAITING


def _due(settings: Settings, requests: BuildRequests) -> bool:
    """Whether a run is to begin; owners of builds that were killed hear of it meanwhile, for nothing else may wait."""
    for killed in requests.settle():
        own_builds.tell(settings, killed)
    return requests.due(settings.personal_builds.at_once)
