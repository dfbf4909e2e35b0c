"""The worker: takes runs from the pool of all work, and from those of the operating systems that it can build for.

In the pool of all work, each machine has a queue of its own as well: what lies there is for this machine alone.

It is a program of its own and not `prefect worker start`, which would be a process of 140 MB for each of the pools.
"""

import asyncio
import logging
import signal
from contextlib import suppress

import anyio
import httpx
from anyio.abc import TaskGroup
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.workers.process import ProcessWorker

from flows import queues
from flows.services.embedded import BASE_JOB_TEMPLATE, POLL, POOL
from flows.settings import Settings, load

_FOR_ALL = "default"  # Prefect's name for the queue of whoever chose none
_log = logging.getLogger("prefect.refit")


async def work(settings: Settings) -> None:
    """Serve the pools until this is cancelled; one that is made later is found as well."""
    served = {POOL}
    async with anyio.create_task_group() as group, get_client() as client:
        await _own_queue(client, settings.machine_name)
        _serve(group, POOL, settings.machine_name, [_FOR_ALL, settings.machine_name])
        while True:
            try:
                pools = await client.read_work_pools(limit=queues.PAGE)
            except httpx.HTTPError as error:
                _log.warning("The server doesn't tell which pools there are: %s", error)
                pools = []
            for pool in set(queues.servable(pools, settings)) - served:
                served.add(pool)
                _serve(group, pool, settings.machine_name)
            await anyio.sleep(POLL)


async def _own_queue(client: PrefectClient, machine: str) -> None:
    """A worker that takes from chosen queues makes neither these nor their pool."""
    with suppress(ObjectAlreadyExists):
        await client.create_work_pool(
            WorkPoolCreate(name=POOL, type="process", base_job_template={**BASE_JOB_TEMPLATE})
        )
    with suppress(ObjectAlreadyExists):
        await client.create_work_queue(machine, work_pool_name=POOL)


def _serve(group: TaskGroup, pool: str, machine: str, only: list[str] | None = None) -> None:
    worker = ProcessWorker(
        work_pool_name=pool, work_queues=only, name=queues.worker_of(machine), create_pool_if_not_found=False
    )
    group.start_soon(worker.start)


async def _until_told_to_end() -> None:
    task = asyncio.current_task()
    assert task
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await work(load())


if __name__ == "__main__":
    try:
        asyncio.run(_until_told_to_end())
    except asyncio.CancelledError:
        _log.info("The worker has ended.")
