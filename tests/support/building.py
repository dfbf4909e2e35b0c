"""Builds in processes that can be killed."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.catalog.model import Profile
from flows.core import progress
from flows.core.programs import process_records
from flows.core.programs.process_records import ProcessId, noted
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.builder.workspace import recover
from flows.images.registry import Registry
from flows.images.run import opened
from flows.images.stages import Graph, Kind, Stage
from flows.orchestration.release_build import carry_out
from flows.releases.outcomes import Outcomes
from flows.releases.plan import ReleasePlan
from tests.support import tiny
from tests.support.killing import kill
from tests.support.processes import in_a_process

BIG = 100_000_000  # bytes of a layer that takes seconds to push
# How often something is tried that may be over before it is killed, on a machine that gets nothing done for a while.
TRIES = 5


def words(program: ProcessId) -> list[str]:
    """The command line of a program; empty if it has ended meanwhile."""
    try:
        return psutil.Process(program.pid).cmdline()
    except psutil.NoSuchProcess:
        return []


def elsewhere(mine: Settings, name: str) -> Settings:
    return mine.model_copy(update={"repository": name, "database_url": f"sqlite:///{mine.home}/{name}.db"})


def graph_of(*stages: Stage) -> Graph:
    return Graph({stage.name: stage for stage in stages}, {})


def build(settings: Settings, graph: Graph) -> dict[str, Built]:
    """The work of a new process: clear up after dead ones, then build what isn't there."""
    recover(settings)
    builder, built = Builder(settings, Registry(settings)), dict[str, Built]()
    for stage in graph.stages.values():
        built[stage.name] = builder.build(stage, built[stage.parent] if stage.parent else None)
    return built


def executions(settings: Settings, name: str) -> int:
    """How often the step of a stage was executed to its end, by its logs."""
    logs = settings.folder("logs", "stages").glob(f"{name}-*.log")
    return sum(tiny.executions(log.read_text()) for log in logs)


def digests(built: Mapping[str, Built]) -> dict[str, str]:
    return {name: stage.digest for name, stage in built.items()}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(owner: object, method: str, *, after: bool = False, when: Callable[..., bool] = lambda *_: True) -> None:
    """Let this process die before or after it calls a method with such arguments."""
    original = getattr(owner, method)

    def call(*arguments: object, **options: object) -> object:
        matches = when(*arguments)
        if matches and not after:
            die()
        result = original(*arguments, **options)
        if matches:
            die()
        return result

    setattr(owner, method, call)


def programs(settings: Settings, word: str) -> list[process_records.ProcessId]:
    """The programs of builds that run now and have been called with this word."""
    folders = settings.folder("running").glob("build-*/processes")
    return [program for folder in folders for program in noted(folder) if word in words(program)]


def nap_of(seconds: float) -> float:
    """So many seconds and a little, by which this sleep is told from all others."""
    return seconds + secrets.randbelow(10**6) / 10**9


def big() -> Stage:
    """A stage on the root whose layer takes seconds to push."""
    content = {"files/big": secrets.token_bytes(BIG)}
    return replace(tiny.on("root", "big"), text=f"COPY files/big /big\n{tiny.step('big')}", files=content)


def pushed(storage: Path, settings: Settings) -> int:
    """Bytes of blobs that a registry has got of a push that isn't done."""
    uploads = storage.glob(f"docker/registry/v2/repositories/{settings.repository}/stages/_uploads/*/data")
    return sum(size_of(path) for path in uploads)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it has become a blob meanwhile
        return 0


def kill_all(process: BaseProcess) -> None:
    """SIGKILL for the process and all its programs at once."""
    with suppress(psutil.NoSuchProcess):  # it may have ended already
        all_of_them = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for each in all_of_them:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.join()


# A process that dies alone leaves its programs at work; those that die with it leave what only they could clear.
DEATHS = pytest.mark.parametrize(
    "death", [kill, pytest.param(kill_all, marks=pytest.mark.long)], ids=["alone", "with its programs"]
)


def needing_wheels(name: str, nap: float, nap_of_wheels: float) -> Stage:
    """A stage that needs wheels, which never come out the same twice."""
    script = f"read it < /proc/sys/kernel/random/uuid; echo $it > /wheels/it; {tiny.step('wheels', nap_of_wheels)[4:]}"
    wheels = Stage("wheels", Kind.wheels, "root", f"WORKDIR /wheels\nRUN {script}")
    text = f"RUN read it < /mnt/built/it; echo $it > /etc/it; {tiny.step(name, nap)[4:]}"
    return Stage(name, Kind.instructions, "root", text, wheels=wheels)


def matrix(nap: float = 0.2, last: int = 1) -> Graph:
    """A base, two bundles and six leaves; with `last=-1` the leaves come in the opposite order."""
    bundles = [tiny.on("root", f"bundle{number}", nap) for number in range(2)]
    leaves = [tiny.on(f"bundle{number % 2}", f"leaf{number}", nap) for number in range(6)]
    return graph_of(tiny.root(), *bundles[::last], *leaves[::last])


def builder_process(settings: Settings, graph: Graph) -> BaseProcess:
    """A builder of its own; it writes the digests into its home, and touches `waits` when it has to wait."""

    def waits(report: progress.Report) -> None:
        if report.note == "another run builds it":
            (settings.folder() / "waits").touch()

    def work() -> None:
        with progress.listening(waits):
            (settings.folder() / "digests").write_text(json.dumps(digests(build(settings, graph))))

    return in_a_process(work)


def results(settings: Settings) -> object:
    return json.loads((settings.home / "digests").read_text())


def carried_out(settings: Settings, graph: Graph, *profiles: Profile) -> tuple[Outcomes, list[str]]:
    """The outcomes of a graph's jobs when a flow builds it, and in which order its stages were started."""
    started: list[str] = []

    def starts(report: progress.Report) -> None:
        if report.note == "starts":
            started.append(report.thing)

    @flow(name="builds", task_runner=ThreadPoolTaskRunner(max_workers=len(graph.stages)))
    def builds() -> Outcomes:
        with opened(settings, datetime.date(2026, 11, 21)) as run:
            planned = ReleasePlan(profiles, graph, Builder(settings, run.registry).plan(graph))
            return carry_out(planned, run)

    with progress.listening(starts):
        return builds(), started
