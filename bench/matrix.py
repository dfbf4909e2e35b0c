"""The test matrix: a base of two steps, two bundles, six leaves; each step waits for three seconds.

The costs are known beforehand: ten executions are enough, and no builder can be faster than twelve seconds, the four
steps from the base to a leaf. All else is overhead, or work that is done twice.
"""

from __future__ import annotations

import datetime
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

from prefect import flow

from bench.results import Row
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Builder, Built
from flows.images.registry import Registry
from flows.images.run import opened
from flows.images.stages import Graph, Kind, Stage
from flows.locks import apt
from flows.orchestration.release_build import THREADS, carry_out
from flows.releases.plan import ReleasePlan
from tests.support.machine import private_home, serve_registry

STEP, CRITICAL, EXECUTIONS, LEAVES = 3.0, 12.0, 10, 6
SAID = "executed"
LAYERS = "buildah build --layers"


@dataclass(frozen=True)
class Measured:
    """How long it took (seconds), and how many steps were executed for it."""

    seconds: float
    executions: int


@dataclass(frozen=True)
class Run:
    """A run of Refit for a graph: how long it took (seconds), and the result of each stage."""

    seconds: float
    stages: Mapping[str, Built]

    @property
    def measured(self) -> Measured:
        """The same, for the matrix."""
        logs = [stage.log.read_text() for stage in self.stages.values() if stage.log]
        return Measured(self.seconds, sum(map(_count, logs)))


def run() -> list[Row]:
    """The test matrix from nothing: Refit, and buildah in all ways that it offers."""
    graph = stages(tiny_tree())
    with scratch() as settings:
        ours = build_with_refit([lambda: plan(graph, settings)], settings)[0].measured
    peers: dict[str, Measured] = {}
    for name, options, at_once in (
        ("buildah build", ["--layers=false"], 1),
        (LAYERS, ["--layers"], 1),
        (f"{LAYERS}, six at once", ["--layers"], LEAVES),
    ):
        with scratch() as settings:
            peers[name] = build_each(graph, options, at_once, settings)
    return rows(ours, peers)


def run_one_leaf() -> list[Row]:
    """One leaf of the test matrix changed: what Refit and `buildah build --layers` need beyond its own step."""
    graph = stages(tiny_tree())
    changed = _changed(graph)
    with scratch() as settings:
        plans = [lambda: plan(graph, settings), lambda: plan(changed, settings)]
        ours = build_with_refit(plans, settings)[1].measured
    with scratch() as settings:
        _, peer = [build_each(one, ["--layers"], 1, settings) for one in (graph, changed)]
    overhead = ours.seconds - STEP
    return [
        Row(
            name="one leaf changed, beyond its own step",
            unit="s",
            goal="one step executed, ≤ 1 s of overhead",
            ours=overhead,
            reached=overhead <= 1 and ours.executions == 1,
            peers={LAYERS: peer.seconds - STEP},
        )
    ]


def rows(ours: Measured, peers: Mapping[str, Measured]) -> list[Row]:
    """The rows about a cold build of the matrix; the first of the peers is the naive one."""
    naive = next(iter(peers.values()))
    return [
        Row(
            name="test matrix (1 base, 2 bundles, 6 leaves), cold",
            unit="s",
            goal=f"≤ 1/4.5 of `buildah build` per image, ≤ 1.3 × the critical path of {CRITICAL:.0f} s",
            ours=ours.seconds,
            reached=ours.seconds <= min(naive.seconds / 4.5, 1.3 * CRITICAL),
            peers={name: cold.seconds for name, cold in peers.items()},
        ),
        Row(
            name="test matrix, steps executed",
            unit="steps",
            goal=f"exactly {EXECUTIONS}",
            ours=ours.executions,
            reached=ours.executions == EXECUTIONS,
            peers={name: cold.executions for name, cold in peers.items()},
        ),
    ]


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


def plan(graph: Graph, settings: Settings) -> ReleasePlan:
    """The plan for stages that are in no image."""
    return ReleasePlan((), graph, Builder(settings, Registry(settings)).plan(graph))


def build_with_refit(plans: Sequence[Callable[[], ReleasePlan]], settings: Settings) -> list[Run]:
    """Plan and build one thing after the other as the flow does, under Prefect, into a registry; publish nothing."""

    @flow(name="bench", task_runner=THREADS)
    def build() -> list[Run]:
        results = []
        for plan in plans:
            started = monotonic()
            planned = plan()
            planned = replace(planned, profiles=(), graph=replace(planned.graph, tops={}))
            with opened(settings, datetime.date.today()) as run:
                outcomes = carry_out(planned, run).stages
            results.append(Run(monotonic() - started, {name: _built(outcome) for name, outcome in outcomes.items()}))
        return results

    return build()


def _built(outcome: object) -> Built:
    if not isinstance(outcome, Built):
        raise RuntimeError(f"a stage can't be built: {outcome}")
    return outcome


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
    words = ["build", *options, "--isolation", tools.isolation(settings), "--tag", f"localhost/{leaf}", str(context)]
    return _count(command.run([*tools.buildah(settings), *words], root=True).stdout)


def _count(output: str) -> int:
    """How many steps were executed: each says so once, in a line of its own."""
    return sum(line.strip() == SAID for line in output.splitlines())


@contextmanager
def scratch() -> Iterator[Settings]:
    """A home and a registry in which nothing is; facts about this machine are found out beforehand."""
    with (
        tempfile.TemporaryDirectory(prefix="refit-bench-") as folder,
        serve_registry(Path(folder) / "registry") as server,
        private_home(Path(folder) / "home", server.port, builds_at_once=LEAVES) as settings,
    ):
        tools.facts(settings)
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
