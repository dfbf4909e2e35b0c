"""The test matrix: a base of two steps, two bundles, six leaves; each step waits for three seconds.

What it costs is known beforehand: ten executions are enough, and no builder can be faster than twelve seconds, the four
steps from the base to a leaf. All else is overhead, or work that is done twice.
"""

from __future__ import annotations

import datetime
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from bench.results import Row, machine, versions
from flows import build_profiles, command, host
from flows.images.build import Builder, Built
from flows.images.registry import Registry
from flows.images.stages import Graph, Kind, Stage
from flows.locks import apt
from flows.plan_release import ReleasePlan
from flows.settings import Settings
from tests.machine import private_home, serve_registry

STEP, CRITICAL, EXECUTIONS, LEAVES = 3.0, 12.0, 10, 6
SAID = "executed"


@dataclass(frozen=True)
class Measured:
    """How long it took (seconds), and how many steps were executed for it."""

    seconds: float
    executions: int


def run() -> list[Row]:
    """Measure all ways to build the matrix, cold, and then again with one leaf changed."""
    tree = tiny_tree()
    graph = stages(tree)
    changed = _changed(graph)
    with scratch() as settings:
        ours, ours_changed = build_with_refit([graph, changed], settings)
    peers: dict[str, list[Measured]] = {}
    for name, options, at_once in (
        ("buildah build", ["--layers=false"], 1),
        ("buildah build --layers", ["--layers"], 1),
        ("buildah build --layers, six at once", ["--layers"], LEAVES),
    ):
        with scratch() as settings:
            peers[name] = [build_each(one, options, at_once, settings) for one in (graph, changed)]
    return _rows(ours, ours_changed, peers)


def _rows(ours: Measured, ours_changed: Measured, peers: Mapping[str, list[Measured]]) -> list[Row]:
    naive = peers["buildah build"][0]
    overhead = ours_changed.seconds - STEP
    rows = [
        Row(
            name="test matrix (1 base, 2 bundles, 6 leaves), cold",
            unit="s",
            goal=f"≤ 1/4.5 of `buildah build` per image, ≤ 1.3 × the critical path of {CRITICAL:.0f} s",
            ours=ours.seconds,
            reached=ours.seconds <= min(naive.seconds / 4.5, 1.3 * CRITICAL),
            peers={name: cold.seconds for name, (cold, _) in peers.items()},
        ),
        Row(
            name="test matrix, steps executed",
            unit="steps",
            goal=f"exactly {EXECUTIONS}",
            ours=ours.executions,
            reached=ours.executions == EXECUTIONS,
            peers={name: cold.executions for name, (cold, _) in peers.items()},
        ),
        Row(
            name="one leaf changed, beyond its own step",
            unit="s",
            goal="one step executed, ≤ 1 s of overhead",
            ours=overhead,
            reached=overhead <= 1 and ours_changed.executions == 1,
            peers={name: changed.seconds - STEP for name, (_, changed) in peers.items()},
        ),
    ]
    return [replace(row, machine=machine(), versions=versions("buildah")) for row in rows]


def stages(tree: bytes) -> Graph:
    """The matrix as a graph of stages, without profiles."""
    base = Stage("base", Kind.instructions, None, f"ADD tree.tar /\n{_step('one')}\n{_step('two')}", {"tree.tar": tree})
    bundles = [Stage(f"bundle{n}", Kind.instructions, "base", _step(f"bundle {n}")) for n in range(2)]
    leaves = [Stage(f"leaf{n}", Kind.instructions, f"bundle{n % 2}", _step(f"leaf {n}")) for n in range(LEAVES)]
    return Graph({stage.name: stage for stage in (base, *bundles, *leaves)}, {})


def _changed(graph: Graph) -> Graph:
    leaf = graph.stages["leaf0"]
    return replace(graph, stages={**graph.stages, "leaf0": replace(leaf, text=_step("leaf 0, changed"))})


def _step(name: str) -> str:
    return f"RUN echo {name} > '/tmp/{name}'; sleep {STEP:.0f}; echo {SAID}"


def build_with_refit(graphs: list[Graph], settings: Settings) -> list[Measured]:
    """Build one graph after the other as the flow does, under Prefect, into a registry."""
    builder = Builder(settings, Registry(settings))

    threads = cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner(max_workers=build_profiles.MOST_THREADS))

    @flow(name="matrix", task_runner=threads)
    def build() -> list[Measured]:
        found = []
        for graph in graphs:
            started = monotonic()
            planned = ReleasePlan((), graph, builder.plan(graph))
            outcomes = build_profiles.carry_out(planned, datetime.date.today(), settings)
            found.append(Measured(monotonic() - started, sum(_executions(outcome) for outcome in outcomes.values())))
        return found

    return build()


def _executions(outcome: object) -> int:
    if not isinstance(outcome, Built):
        raise RuntimeError(f"a stage can't be built: {outcome}")
    return _count(outcome.log.read_text()) if outcome.log else 0


def build_each(graph: Graph, options: list[str], at_once: int, settings: Settings) -> Measured:
    """Build each leaf with buildah by a Containerfile of its own that has all steps."""
    with tempfile.TemporaryDirectory() as folder:
        leaves = [name for name in graph.stages if name.startswith("leaf")]
        builds = [partial(_build, graph, name, Path(folder) / name, options, settings) for name in leaves]
        started = monotonic()
        with ThreadPoolExecutor(at_once) as pool:
            executions = sum(pool.map(_call, builds))
        return Measured(monotonic() - started, executions)


def _call(build: Callable[[], int]) -> int:
    return build()


def _build(graph: Graph, leaf: str, context: Path, options: list[str], settings: Settings) -> int:
    context.mkdir()
    ancestry = graph.ancestry(leaf)
    for path, content in ancestry[0].files.items():
        (context / path).write_bytes(content)
    (context / "Containerfile").write_text("\n".join(["FROM scratch", *(stage.text for stage in ancestry)]))
    words = ["build", *options, "--isolation", host.isolation(settings), "--tag", f"localhost/{leaf}", str(context)]
    return _count(command.run([*host.buildah(settings), *words], root=True).stdout)


def _count(output: str) -> int:
    """How many steps were executed: each says so once, in a line of its own."""
    return sum(line.strip() == SAID for line in output.splitlines())


@contextmanager
def scratch() -> Iterator[Settings]:
    """A home and a registry in which nothing is; what is true of this machine is found out beforehand."""
    with (
        tempfile.TemporaryDirectory(prefix="refit-bench-") as folder,
        serve_registry(Path(folder) / "registry") as server,
        private_home(Path(folder) / "home", server.port, builds_at_once=LEAVES) as settings,
    ):
        host.facts(settings)
        yield settings


def tiny_tree() -> bytes:
    """A root filesystem with a shell and nothing else, as a tar."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tree:
        for name in ("bin", "dev", "etc", "mnt", "proc", "run", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tree.addfile(folder)
        busybox, program = tarfile.TarInfo("bin/busybox"), _busybox()
        busybox.size, busybox.mode = len(program), 0o755
        tree.addfile(busybox, io.BytesIO(program))
        for name in ("sh", "sleep"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tree.addfile(link)
    return content.getvalue()


def _busybox() -> bytes:
    settings = Settings()
    with tempfile.TemporaryDirectory() as folder:
        sources, target = Path(folder) / "sources.list", Path(folder) / "tree.tar"
        sources.write_text(apt.sources("bookworm", settings.debian_mirror))
        options = ["--variant=extract", "--include=busybox-static"]
        argv = ["mmdebstrap", *options, "bookworm", str(target), str(sources)]
        command.run(argv, root=True, env=apt.proxy(settings))
        with tarfile.open(target) as tree:
            program = tree.extractfile("./bin/busybox")
            assert program
            return program.read()
