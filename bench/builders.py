"""Builders on two machines: what handing a stage over costs, and the test matrix shared by two.

Both are processes of this machine with a storage each; registry and database are what they share.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from time import monotonic

from bench.matrix import CRITICAL, EXECUTIONS, SAID, STEP, stages, tiny_tree
from bench.results import Row
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.distributed.build_worker import BuildWorker
from flows.images.distributed.remote_builder import RemoteBuilder
from flows.images.registry import Registry
from flows.images.stages import Graph, Kind, Stage
from tests.support.machine import private_home, serve_registry
from tests.support.waiting import wait_until

STAGES = 12  # one after the other
SYSTEM = "deb12"


def run() -> list[Row]:
    """Measure a chain of stages that do next to nothing, and the matrix on two machines."""
    tree = tiny_tree()
    with machines() as pair:
        chain = _hand_over(_chain(tree), pair[:1])
        overhead = mean(waited - built.seconds for waited, built in chain.stages)
    with machines() as pair:
        matrix = _hand_over(stages(tree), pair)
        shares = [_executions(settings) for settings in pair]
    return [
        Row(
            name="handing a stage over to another machine, beyond what building it takes",
            unit="s",
            goal=f"≤ 1 s a stage, of {STAGES} one after the other",
            ours=overhead,
            reached=overhead <= 1,
        ),
        Row(
            name="test matrix on two machines with a storage each, cold",
            unit="s",
            goal=f"exactly {EXECUTIONS} steps executed, some on each",
            ours=matrix.seconds,
            reached=sum(shares) == EXECUTIONS and all(shares),
            peers={"its steps one after the other": STEP * EXECUTIONS, "its longest path": CRITICAL},
        ),
    ]


@dataclass(frozen=True)
class Handed:
    """How long all took (seconds), and of each stage how long it was waited for."""

    seconds: float
    stages: tuple[tuple[float, Built], ...]


@contextmanager
def machines() -> Iterator[tuple[Settings, Settings]]:
    """Two homes, a registry and a database in which nothing is."""
    with (
        tempfile.TemporaryDirectory(prefix="refit-bench-") as folder,
        serve_registry(Path(folder) / "registry") as server,
    ):
        shared = {"database_url": f"sqlite:///{folder}/shared.db", "builds_at_once": 3}
        with (
            private_home(Path(folder) / "one", server.port, machine="one", **shared) as one,
            private_home(Path(folder) / "two", server.port, machine="two", **shared) as two,
        ):
            for each in (one, two):
                tools.facts(each)
            yield one, two


def _chain(tree: bytes) -> Graph:
    chain = [Stage("stage0", Kind.instructions, None, "ADD tree.tar /", {"tree.tar": tree})]
    for number in range(1, STAGES):
        chain.append(Stage(f"stage{number}", Kind.instructions, chain[-1].name, f"RUN echo {number} >/tmp/{number}"))
    return Graph({stage.name: stage for stage in chain}, {})


def _hand_over(graph: Graph, builders: Sequence[Settings]) -> Handed:
    """Have a graph built by builders that are there already."""
    handover = RemoteBuilder(builders[0], Registry(builders[0]), dict.fromkeys(graph.stages, SYSTEM), {}, graft=True)
    start = get_context("spawn").Process
    with ThreadPoolExecutor(len(graph.stages)) as pool, handover.going_on():
        processes = [start(target=_serve, args=(settings, handover.jobs.run)) for settings in builders]
        for process in processes:
            process.start()
        wait_until(lambda: len(handover.jobs.builders()) == len(builders), 60)
        started, futures = monotonic(), dict[str, Future[tuple[float, Built]]]()
        for stage in graph.stages.values():
            parent = futures[stage.parent] if stage.parent else None
            futures[stage.name] = pool.submit(_awaited, handover, stage, parent)
        handed = tuple(future.result() for future in futures.values())
        seconds = monotonic() - started
    for process in processes:
        process.join()
    return Handed(seconds, handed)


def _awaited(handover: RemoteBuilder, stage: Stage, parent: Future[tuple[float, Built]] | None) -> tuple[float, Built]:
    below = parent.result()[1] if parent else None
    started = monotonic()
    built = handover.build(stage, below)
    return monotonic() - started, built


def _serve(settings: Settings, run: str) -> None:
    BuildWorker(settings, run, [SYSTEM]).serve()


def _executions(settings: Settings) -> int:
    logs = settings.folder("logs", "stages").glob("*.log")
    return sum(line.strip() == SAID for log in logs for line in log.read_text().splitlines())
