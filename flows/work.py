"""The worker: takes runs from the pool of all work, and from those of the operating systems that it can build for.

It is a program of its own and not `prefect worker start`, which would be a process of 140 MB for each of the pools.
"""

import asyncio
import logging
import signal
import socket

import anyio
import httpx
from anyio.abc import TaskGroup
from prefect import get_client
from prefect.workers.process import ProcessWorker

from flows import queues
from flows.services.embedded import BASE_JOB_TEMPLATE, POLL, POOL
from flows.settings import Settings, load

_log = logging.getLogger("prefect.refit")


async def work(settings: Settings) -> None:
    """Serve the pools until this is cancelled; one that is made later is found as well."""
    served = {POOL}
    async with anyio.create_task_group() as group, get_client() as client:
        _serve(group, POOL)
        while True:
            try:
                pools = await client.read_work_pools(limit=queues.PAGE)
            except httpx.HTTPError as error:
                _log.warning("The server doesn't tell which pools there are: %s", error)
                pools = []
            for pool in set(queues.servable(pools, settings)) - served:
                served.add(pool)
                _serve(group, pool)
            await anyio.sleep(POLL)


def _serve(group: TaskGroup, pool: str) -> None:
    worker = ProcessWorker(
        work_pool_name=pool,
        name=f"{POOL}@{socket.gethostname()}",
        create_pool_if_not_found=pool == POOL,
        base_job_template=dict(BASE_JOB_TEMPLATE) if pool == POOL else None,
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
