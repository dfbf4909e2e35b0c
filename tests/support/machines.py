"""Machines that build for a run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.distributed.build_worker import BuildWorker
from flows.images.distributed.remote_builder import RemoteBuilder
from flows.images.registry import Registry
from flows.images.stages import Graph
from tests.support.processes import in_a_process

HERE = "deb12"


@contextmanager
def handing(settings: Settings, graph: Graph, system: str = HERE) -> Iterator[RemoteBuilder]:
    """A run that has all stages of a graph built by others; the longer its name, the more urgent a stage."""
    urgency = {name: float(len(name)) for name in graph.stages}
    handover = RemoteBuilder(settings, Registry(settings), dict.fromkeys(graph.stages, system), urgency, graft=True)
    with handover.going_on():
        yield handover


def hand_over(handover: RemoteBuilder, graph: Graph, pool: ThreadPoolExecutor) -> dict[str, Future[Built]]:
    """Each stage as soon as its parent is there."""
    futures: dict[str, Future[Built]] = {}
    for stage in graph.stages.values():
        parent = futures[stage.parent] if stage.parent else None
        futures[stage.name] = pool.submit(
            lambda stage=stage, parent=parent: handover.build(stage, parent.result() if parent else None)
        )
    return futures


def builder(settings: Settings, handover: RemoteBuilder, name: str, systems: tuple[str, ...] = (HERE,)) -> BaseProcess:
    """A machine that builds for a run until that is over."""
    named = settings.model_copy(update={"machine": name})
    return in_a_process(lambda: BuildWorker(named, handover.jobs.run, systems).serve())
