"""Builders are killed, hang, meet each other, lose their registry: what is whole stays, only the rest is done again.

All stages stand on a root of this machine's own shell (see `tiny`), so that each takes a second.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.testing.utilities import prefect_test_harness

from flows.catalog.model import Base, Bundle, Ide, IdeConfig, Profile
from flows.core import command, process_records, progress
from flows.core.errors import RefitError
from flows.core.process_records import ProcessId, noted
from flows.core.progress import State
from flows.core.settings import Settings
from flows.host import containers, tools
from flows.images.build import Builder, Built
from flows.images.builder.workspace import recover
from flows.images.ledger import Ledger
from flows.images.manifests import digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.images.run import opened
from flows.images.signed import signature_tag
from flows.images.stages import Graph, Kind, Stage
from flows.orchestration.release_build import carry_out
from flows.publishing import checks, evidence
from flows.publishing import publish as publishing
from flows.publishing.publish import current
from flows.publishing.published import Published
from flows.releases.outcomes import Outcomes
from flows.releases.plan import ReleasePlan
from tests.faults.test_kill import kill
from tests.real.test_build import assert_clean, sleepers
from tests.support import tiny
from tests.support.machine import RegistryServer, private_home, serve_registry
from tests.support.prefect_api import prefect_client
from tests.support.processes import in_a_process
from tests.support.waiting import PATIENCE, free_port, some_long, wait_until

BIG = 100_000_000  # bytes of a layer that takes seconds to push
KEY = re.compile(r"[0-9a-f]{64}")


def words(program: ProcessId) -> list[str]:
    """What a program was called with; empty if it has ended meanwhile."""
    try:
        return psutil.Process(program.pid).cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def mine(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with private_home(tmp_path_factory.mktemp("builds") / "home", registry_server.port) as settings:
        yield settings


@pytest.fixture
def fresh(mine: Settings) -> Settings:
    """The same machine with a part of the registry where nothing is yet, and a database that knows nothing."""
    return elsewhere(mine, secrets.token_hex(4))


def elsewhere(mine: Settings, name: str) -> Settings:
    return mine.model_copy(update={"repository": name, "database_url": f"sqlite:///{mine.home}/{name}.db"})


def graph_of(*stages: Stage) -> Graph:
    return Graph({stage.name: stage for stage in stages}, {})


def chain() -> Graph:
    """A root, a closed stage, and one on top."""
    return graph_of(tiny.root(), tiny.on("root", "closed", kind=Kind.closed), tiny.on("closed", "top"))


def build(settings: Settings, graph: Graph) -> dict[str, Built]:
    """What a new process does: clear up after dead ones, then build what isn't there."""
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


@pytest.fixture(scope="module")
def expected(mine: Settings) -> dict[str, str]:
    """The digests of the chain as somebody gets them whom nobody kills."""
    return digests(build(elsewhere(mine, "undisturbed"), chain()))


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


def of_stage(name: str) -> Callable[..., bool]:
    return lambda _, stage, *rest: stage.name == name


def tags(pattern: str) -> Callable[..., bool]:
    return lambda _, repository, reference, *rest: re.fullmatch(pattern, reference) is not None


# Where → how to die there, and how often the steps of root, closed, and top are executed in both processes together.
POINTS: dict[str, tuple[Callable[[], None], tuple[int, int, int]]] = {
    "after the push, before the ledger": (lambda: deadly(Ledger, "record"), (2, 1, 1)),
    "after the ledger, before the key's tag": (lambda: deadly(Ledger, "record", after=True), (1, 1, 1)),
    "after the ledger, before the image of a closed stage is there": (
        lambda: deadly(Ledger, "record", after=True, when=lambda _, name, *rest: name == "closed"),
        (1, 1, 1),
    ),
    "after the key's tag": (lambda: deadly(Registry, "put_manifest", after=True, when=tags(KEY.pattern)), (1, 1, 1)),
    "before a layer is kept": (lambda: deadly(Registry, "put_manifest", when=tags("layer-.*")), (1, 2, 1)),
    "after a layer is kept, before its image has a name": (
        lambda: deadly(Builder, "_name", when=of_stage("closed")),
        (1, 1, 1),
    ),
}


@pytest.mark.parametrize("where", some_long(POINTS, short="after the ledger, before the key's tag"))
def test_killed_between_two_writes(fresh: Settings, expected: dict[str, str], where: str) -> None:
    arm, wanted = POINTS[where]
    before = [executions(fresh, name) for name in expected]

    def work() -> None:
        arm()
        build(fresh, chain())

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the process never came there"
    assert digests(build(fresh, chain())) == expected
    executed = [executions(fresh, name) - count for name, count in zip(expected, before, strict=True)]
    assert tuple(executed) == wanted
    assert {built.how for built in build(fresh, chain()).values()} == {"reused"}
    assert_clean(fresh)


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
    assert process.pid
    for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.join()


# A process that dies alone leaves its programs at work; those that die with it leave what only they could clear.
DEATHS = pytest.mark.parametrize(
    "death", [kill, pytest.param(kill_all, marks=pytest.mark.long)], ids=["alone", "with its programs"]
)


@DEATHS
def test_killed_while_a_step_runs(fresh: Settings, death: Callable[[BaseProcess], None]) -> None:
    nap = nap_of(3)
    graph = graph_of(tiny.root(), tiny.on("root", "slow", nap))
    process = in_a_process(lambda: build(fresh, graph))
    wait_until(lambda: sleepers(str(nap)))
    death(process)
    assert bool(sleepers(str(nap))) == (death is kill)
    built = build(fresh, graph)
    assert [stage.how for stage in built.values()] == ["reused", "built"]
    log = built["slow"].log
    assert log and tiny.executions(log.read_text()) == 1
    assert_clean(fresh)


def needing_wheels(name: str, nap: float, nap_of_wheels: float) -> Stage:
    """A stage that needs wheels, which never come out the same twice."""
    script = f"read it < /proc/sys/kernel/random/uuid; echo $it > /wheels/it; {tiny.step('wheels', nap_of_wheels)[4:]}"
    wheels = Stage("wheels", Kind.wheels, "root", f"WORKDIR /wheels\nRUN {script}")
    text = f"RUN read it < /mnt/built/it; echo $it > /etc/it; {tiny.step(name, nap)[4:]}"
    return Stage(name, Kind.instructions, "root", text, wheels=wheels)


@pytest.mark.parametrize("during", some_long(["wheels", "top"], short="top"))
def test_killed_while_wheels_are_made_or_installed(fresh: Settings, during: str) -> None:
    nap = nap_of(3)
    top = needing_wheels("top", *((0, nap) if during == "wheels" else (nap, 0)))
    graph, count = graph_of(tiny.root(), top), executions(fresh, "wheels")
    process = in_a_process(lambda: build(fresh, graph))
    wait_until(lambda: sleepers(str(nap)))
    kill(process)
    reason = build(fresh, graph)["top"].reason
    assert reason.startswith("wheels was built as" if during == "wheels" else "wheels was reused as")
    assert executions(fresh, "wheels") == count + 1
    assert_clean(fresh)


def test_a_layer_that_two_parents_want_at_once_is_made_once(fresh: Settings) -> None:
    below = build(fresh, graph_of(tiny.root(), tiny.on("root", "one"), tiny.on("root", "two")))
    pair = [replace(tiny.on(name, "over", 1, Kind.closed), name=f"over-{name}") for name in ("one", "two")]
    with ThreadPoolExecutor() as pool:
        built = pool.map(lambda stage: Builder(fresh, Registry(fresh)).build(stage, below[str(stage.parent)]), pair)
        assert sorted(stage.how for stage in built) == ["built", "grafted"]
    assert sum(executions(fresh, stage.name) for stage in pair) == 1


def test_wheels_that_two_want_at_once_are_made_once(fresh: Settings) -> None:
    root, count = build(fresh, graph_of(tiny.root()))["root"], executions(fresh, "wheels")
    pair = [needing_wheels(name, 0, 1) for name in ("one", "two")]
    with ThreadPoolExecutor() as pool:
        built = pool.map(lambda stage: Builder(fresh, Registry(fresh)).build(stage, root), pair)
        reasons = sorted(stage.reason.partition(" as ")[0] for stage in built)
    assert reasons == ["wheels was built", "wheels was reused"]
    assert executions(fresh, "wheels") == count + 1


@DEATHS
def test_killed_while_a_layer_is_pushed(
    fresh: Settings, registry_server: RegistryServer, death: Callable[[BaseProcess], None]
) -> None:
    graph = graph_of(tiny.root(), big())
    process = in_a_process(lambda: build(fresh, graph))
    wait_until(lambda: programs(fresh, "push") and pushed(registry_server.storage, fresh) > BIG // 10)
    death(process)
    left = programs(fresh, "push")
    assert bool(left) == (death is kill), "the push was over too early"
    assert [stage.how for stage in build(fresh, graph).values()] == ["reused", "built"]
    assert not any(program.alive for program in left)
    assert_clean(fresh)


def build_until_told_to_end(settings: Settings, graph: Graph) -> None:
    """What a flow run does: threads build, and the main thread alone hears that it is to end."""

    def leave(*_: object) -> None:
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, leave)
    with ThreadPoolExecutor() as pool, command.terminating_children():
        pool.submit(build, settings, graph)
        while True:
            time.sleep(0.05)


@pytest.mark.parametrize("isolation", some_long(tools.ISOLATIONS, short="oci"))
def test_a_step_that_is_ended_half_way_is_never_taken_for_done(fresh: Settings, isolation: str) -> None:
    """A shell that is process 1 outlives what it waited for, and buildah commits what there is."""
    settings, nap = fresh.model_copy(update={"isolation": isolation}), nap_of(3600)
    try:
        tools.isolation(settings)
    except RefitError as error:
        pytest.skip(str(error))
    graph = graph_of(tiny.root(), tiny.on("root", "slow", nap))
    root = build(settings, graph_of(tiny.root()))["root"]
    process = in_a_process(lambda: build_until_told_to_end(settings, graph))
    wait_until(lambda: sleepers(str(nap)))
    process.terminate()
    process.join()
    assert process.exitcode == 7
    registry = Registry(settings)
    assert {*registry.tags(registry.stages)} == {root.key, signature_tag(root.key), "unfinished"}
    assert_clean(settings)


@dataclass
class Unsteady:
    """A registry that can be killed and started again on what it has stored."""

    folder: Path
    port: int = field(default_factory=free_port)
    running: ExitStack = field(default_factory=ExitStack)

    def start(self) -> RegistryServer:
        return self.running.enter_context(serve_registry(self.folder, self.port))

    def kill(self) -> None:
        self.running.close()

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.fixture
def unsteady(tmp_path: Path) -> Iterator[Unsteady]:
    server = Unsteady(tmp_path / "registry")
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("down", [0.0, pytest.param(15.0, marks=pytest.mark.long)])
def test_the_registry_is_killed_in_mid_push(unsteady: Unsteady, tmp_path: Path, down: float) -> None:
    graph, storage = graph_of(tiny.root(), big()), unsteady.folder / "images"
    with private_home(tmp_path / "home", unsteady.port) as settings, ThreadPoolExecutor() as pool:
        build(settings, graph_of(tiny.root()))
        first = pool.submit(build, settings, graph)
        wait_until(lambda: programs(settings, "push") and pushed(storage, settings) > BIG // 10)
        unsteady.kill()
        time.sleep(down)
        unsteady.start()
        assert first.exception() is None or isinstance(first.exception(), RegistryError)
        again = build(settings, graph)["big"]
        registry = Registry(settings)
        assert not registry.missing(registry.stages, registry.manifest(registry.stages, again.key))
        assert_clean(settings)


class Content(BytesIO):
    """A file in the middle of which something happens, once."""

    def __init__(self, content: bytes, happens: Callable[[], None]) -> None:
        super().__init__(content)
        self._happens, self._middle = [happens], len(content) // 2

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > self._middle and self._happens:
            self._happens.pop()()
        return super().read(size)


@pytest.mark.long
def test_the_registry_restarts_while_a_blob_is_uploaded(unsteady: Unsteady, tmp_path: Path) -> None:
    with private_home(tmp_path / "home", unsteady.port) as settings:
        registry, content = Registry(settings), secrets.token_bytes(BIG)
        registry.put_file(registry.stages, digest_of(content), Content(content, unsteady.restart))
        assert registry.blob(registry.stages, digest_of(content), len(content)) == content


@pytest.mark.long
def test_the_registry_dies_while_a_blob_is_uploaded(unsteady: Unsteady, tmp_path: Path) -> None:
    with private_home(tmp_path / "home", unsteady.port) as settings:
        registry, content = Registry(settings), secrets.token_bytes(BIG)
        with pytest.raises(RegistryError, match="doesn't answer"):
            registry.put_file(registry.stages, digest_of(content), Content(content, unsteady.kill))
        unsteady.start()
        assert not registry.has_blob(registry.stages, digest_of(content))
        registry.put_file(registry.stages, digest_of(content), BytesIO(content))
        assert registry.blob(registry.stages, digest_of(content), len(content)) == content


def test_a_step_that_hangs_is_ended_and_others_go_on(fresh: Settings) -> None:
    root, nap = build(fresh, graph_of(tiny.root()))["root"], nap_of(3600)
    hasty = fresh.model_copy(update={"build_timeout_seconds": 6.0})
    with ThreadPoolExecutor() as pool:
        other = pool.submit(Builder(fresh, Registry(fresh)).build, tiny.on("root", "other", 9), root)
        with pytest.raises(RefitError, match=r"'hangs' takes too long: .*sleep 36.* was ended after 6 s") as caught:
            Builder(hasty, Registry(hasty)).build(tiny.on("root", "hangs", nap), root)
        assert "build_timeout_seconds" in caught.value.hint
        assert sleepers(str(nap)) == []
        assert other.result().how == "built"
    assert_clean(fresh)


@pytest.mark.long
def test_runs_that_meet_build_together_no_more_than_one_alone(fresh: Settings) -> None:
    root, nap, told = build(fresh, graph_of(tiny.root()))["root"], nap_of(5), list[progress.Report]()
    small = fresh.model_copy(update={"builds_at_once": 1})
    process = in_a_process(lambda: Builder(small, Registry(small)).build(tiny.on("root", "slow", nap), root))
    wait_until(lambda: sleepers(str(nap)))
    with progress.listening(told.append):
        assert Builder(small, Registry(small)).build(tiny.on("root", "other"), root).how == "built"
    states = [report.state for report in told]
    assert states[0] is State.waiting and set(states[1:-1]) == {State.running} and states[-1] is State.done
    assert sleepers(str(nap)) == []
    process.join()
    assert process.exitcode == 0
    assert_clean(fresh)


def test_a_stage_that_is_not_deterministic_is_told_and_what_came_out_first_counts(
    fresh: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{tiny.root().text} && read id < /proc/sys/kernel/random/uuid && echo $id > /etc/id"
    stage, builder = replace(tiny.root(), name="random", text=text), Builder(fresh, Registry(fresh))
    first = builder.build(stage, None)
    assert not first.reason
    with monkeypatch.context() as blind:  # as if another had finished it in between
        blind.setattr(builder, "_find", lambda *_: None)
        second = builder.build(stage, None)
    assert second.digest == first.digest
    assert "not deterministic" in second.reason
    assert second.reason.endswith("they differ in files etc/id")
    registry = Registry(fresh)
    registry.delete(registry.stages, first.digest)
    third = builder.build(stage, None)
    assert third.digest != first.digest
    assert third.reason.endswith("which the registry has lost")
    assert builder.build(stage, None).digest == third.digest


@pytest.fixture
def pair(registry_server: RegistryServer, tmp_path: Path) -> Iterator[tuple[Settings, Settings]]:
    """Two builders with a storage of their own each, who share registry and database."""
    shared = {"repository": secrets.token_hex(4), "database_url": f"sqlite:///{tmp_path}/shared.db"}
    with (
        private_home(tmp_path / "one", registry_server.port, **shared) as one,
        private_home(tmp_path / "two", registry_server.port, **shared) as two,
    ):
        yield one, two


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


@pytest.mark.long
def test_two_builders_execute_each_stage_once(pair: tuple[Settings, Settings]) -> None:
    graph = matrix()
    processes = [builder_process(pair[0], graph), builder_process(pair[1], matrix(last=-1))]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert {name: sum(executions(one, name) for one in pair) for name in graph.stages} == dict.fromkeys(graph.stages, 1)
    assert results(pair[0]) == results(pair[1])
    assert all(sum(executions(one, name) for name in graph.stages) > 1 for one in pair), "one of them had nothing to do"
    for one in pair:
        assert_clean(one)


@pytest.mark.long
def test_a_builder_takes_over_what_a_killed_one_was_at(pair: tuple[Settings, Settings]) -> None:
    nap, (one, two) = nap_of(4), pair
    graph = graph_of(tiny.root(), tiny.on("root", "slow", nap))
    first = builder_process(one, graph)
    wait_until(lambda: sleepers(str(nap)))
    second = builder_process(two, graph)
    wait_until((two.home / "waits").exists)
    assert not programs(two, "build")
    kill(first)
    wait_until(lambda: programs(two, "build"), 30)  # long before the lease would run out
    second.join()
    assert second.exitcode == 0
    assert (executions(one, "slow"), executions(two, "slow")) == (0, 1)
    assert recover(one) == 1
    assert digests(build(one, graph)) == results(two)
    assert executions(one, "slow") == 0
    for each in pair:
        assert_clean(each)


@pytest.fixture(scope="module")
def prefect() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=PATIENCE):
        yield


def carried_out(settings: Settings, graph: Graph, *profiles: Profile) -> tuple[Outcomes, list[str]]:
    """What came out of the jobs of a graph when a flow builds it, and in which order its stages were started."""
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


@pytest.mark.long
@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize("at_once", [1, 4, 8])
def test_each_stage_is_executed_once_at_any_parallelism(mine: Settings, fresh: Settings, at_once: int) -> None:
    graph, settings = matrix(), fresh.model_copy(update={"builds_at_once": at_once})
    outcomes, started = carried_out(settings, graph)
    assert sorted(started) == sorted(graph.stages)
    assert [stage for stage in outcomes.stages.values() if not isinstance(stage, Built)] == []
    again, _ = carried_out(settings, graph)
    assert {stage.stage: stage.digest for stage in again.built} == {
        stage.stage: stage.digest for stage in outcomes.built
    }


@pytest.mark.long
@pytest.mark.usefixtures("prefect")
def test_the_longest_path_is_built_first(fresh: Settings) -> None:
    graph = graph_of(
        *(tiny.root(), tiny.on("root", "quick"), tiny.on("root", "slow", 5)),
        *(tiny.on("quick", "leaf0"), tiny.on("slow", "leaf1"), tiny.on("slow", "leaf2", 5)),
    )
    alone = fresh.model_copy(update={"builds_at_once": 1})
    carried_out(alone, graph)
    root = replace(tiny.root(), text=f"{tiny.root().text}\n{tiny.step('another')}")
    _, started = carried_out(alone, Graph({**graph.stages, "root": root}, {}))
    assert started[:3] == ["root", "slow", "leaf2"]
    assert sorted(started) == sorted(graph.stages)


@pytest.mark.long
@pytest.mark.usefixtures("prefect")
def test_a_run_goes_on_when_one_of_its_stages_hangs(fresh: Settings) -> None:
    graph, nap = matrix(), nap_of(3600)
    hanging = Graph({**graph.stages, "bundle1": tiny.on("root", "bundle1", nap)}, {})
    outcomes, _ = carried_out(fresh.model_copy(update={"build_timeout_seconds": 15.0, "builds_at_once": 2}), hanging)
    failed = {name for name, outcome in outcomes.stages.items() if not isinstance(outcome, Built)}
    assert failed == {"bundle1", "leaf1", "leaf3", "leaf5"}
    assert all("'bundle1' takes too long" in str(outcomes.stages[name]) for name in failed)
    assert sleepers(str(nap)) == []
    assert_clean(fresh)


@pytest.fixture(scope="module")
def contents(builder: Builder, base: Built) -> tuple[Built, Built]:
    """Two contents of an image; each waits when it is started."""
    waiting = builder.build(Stage("waits", Kind.instructions, base.stage, 'CMD ["sleep", "infinity"]'), base)
    return waiting, builder.build(Stage("more", Kind.instructions, "waits", "RUN echo more > /opt/more"), waiting)


@pytest.fixture
def profile(base_recipe: Base) -> Profile:
    """A profile of this test alone."""
    name = f"b{secrets.token_hex(8)}"
    ide, bundle = Ide("runtime", Path(), "", IdeConfig()), Bundle(name, Path(), "", (), {})
    return Profile(f"runtime-{name}-deb12-py311", "2026a", ide, bundle, base_recipe, "py311")


def publish(profile: Profile, top: Built, settings: Settings, days: int = 0) -> Published:
    date = datetime.date(2026, 11, 20) + datetime.timedelta(days=days)
    with opened(settings, date) as run:
        return publishing.publish(profile, top, {evidence.PACKAGES: b"{}"}, run)


def alias_of(_: object, name: str, *rest: object) -> bool:
    return name.endswith("_2026a")


# Where → how to die there, and which tags are there then beside those of the image before.
PUBLISHING: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "before the checks": (lambda: deadly(checks, "run"), ()),
    "while it is checked": (lambda: deadly(checks, "_pip"), ()),
    "after the checks": (lambda: deadly(evidence, "attach"), ()),
    "before the evidence is listed": (lambda: deadly(evidence, "_list"), ()),
    "before the date tag": (lambda: deadly(publishing, "_give_date_tag"), ()),
    "between date tag and alias": (lambda: deadly(publishing, "_give_date_tag", after=True), ("20261121",)),
    "after the alias": (lambda: deadly(publishing, "_point", after=True, when=alias_of), ("20261121", "alias")),
}


@pytest.mark.long
@pytest.mark.parametrize("where", PUBLISHING)
def test_killed_while_an_image_is_published(
    where: str, contents: tuple[Built, Built], profile: Profile, shared: Settings, registry: Registry
) -> None:
    arm, there = PUBLISHING[where]
    first = publish(profile, contents[0], shared)
    shutil.rmtree(shared.folder("cache", "checks"))  # what was checked once isn't checked again

    def work() -> None:
        arm()
        publish(profile, contents[1], shared, days=1)

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the process never came there"
    assert (current(profile.stem, "2026a", registry) != first.digest) == ("alias" in there)
    assert dates(profile, registry) == ["20261120", *(tag for tag in there if tag != "alias")]

    second = publish(profile, contents[1], shared, days=1)
    assert second.new == ("alias" not in there)
    assert current(profile.stem, "2026a", registry) == second.digest != first.digest
    assert dates(profile, registry) == ["20261120", "20261121"]
    assert registry.digest(registry.repository, first.tag) == first.digest
    assert evidence.newest(registry, second.digest)
    assert containers.remove_orphans(shared) == ()


def dates(profile: Profile, registry: Registry) -> list[str]:
    """The date tags of a profile, without what is the same in all."""
    stem = f"{profile.stem}_2026a_"
    return sorted(tag.removeprefix(stem) for tag in registry.tags(registry.repository) if tag.startswith(stem))


@pytest.mark.long
def test_an_image_of_a_day_that_the_clock_went_back_to_is_the_current_one(
    contents: tuple[Built, Built], profile: Profile, shared: Settings, registry: Registry
) -> None:
    first, second = publish(profile, contents[0], shared), publish(profile, contents[1], shared, days=-3)
    assert dates(profile, registry) == ["20261117", "20261120"]
    assert current(profile.stem, "2026a", registry) == second.digest != first.digest
    again = publish(profile, contents[1], shared, days=1)
    assert (again.tag, again.new) == (second.tag, False)


@pytest.mark.long
@DEATHS
def test_killed_while_a_parent_is_pulled(pair: tuple[Settings, Settings], death: Callable[[BaseProcess], None]) -> None:
    one, two = pair
    below = graph_of(tiny.root(), big())
    build(one, below)
    graph = graph_of(*below.stages.values(), tiny.on("big", "top"))
    process = builder_process(two, graph)
    wait_until(lambda: programs(two, "copy"))
    death(process)
    built = build(two, graph)
    assert [stage.how for stage in built.values()] == ["reused", "reused", "built"]
    assert not programs(two, "copy")
    assert_clean(two)
    assert digests(build(one, graph)) == digests(built)


def stored(registry: Registry, storage: Path) -> dict[str, str]:
    """The files in which a registry has its stages and images; of links, also where they lead."""
    root = storage / "docker" / "registry" / "v2"
    folders = (root / "blobs", *(root / "repositories" / name for name in (registry.stages, registry.repository)))
    files = [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and "unfinished" not in path.parts
    ]
    return {str(path.relative_to(root)): path.read_text() if path.name == "link" else "" for path in files}


def announced() -> list[str]:
    """The digests of all images of which the Prefect server was told that they are new, oldest first."""
    asked = {"filter": {"event": {"name": [publishing.EVENT]}, "order": "ASC"}}
    server = Settings(prefect_server=str(PREFECT_API_URL.value()).removesuffix("/api"))
    with prefect_client(server) as api:
        events = api.post("/events/filter", json=asked).raise_for_status().json()["events"]
    return [event["payload"]["digest"] for event in events]


@pytest.mark.long
@pytest.mark.usefixtures("prefect")
def test_a_rebuild_that_gives_the_same_stops_there(
    shared: Settings, base_stage: Stage, profile: Profile, registry: Registry, registry_server: RegistryServer
) -> None:
    names = (f"{profile.bundle.name}-bundle", f"{profile.bundle.name}-other", profile.stem)

    def build(comment: str, said: str) -> tuple[list[Built], Published, list[int]]:
        """An image and another stage on a bundle that is told differently and does the same, unless it says more."""
        bundle, other, image = names
        text = f"# {comment}\nRUN . /mnt/files/script > /etc/said; echo {tiny.SAID}"
        script = f": {comment}; echo {said}".encode()
        graph = graph_of(
            base_stage,
            Stage(bundle, Kind.instructions, base_stage.name, text, {"script": script}),
            tiny.on(bundle, other, kind=Kind.closed),
            Stage(image, Kind.instructions, bundle, f'{tiny.step("image")}\nCMD ["sleep", "infinity"]'),
        )
        outcomes, _ = carried_out(shared, replace(graph, tops={profile.stem: image}), profile)
        published = outcomes.images[profile.stem]
        assert isinstance(published, Published), published
        stages = [outcome for name in names if isinstance(outcome := outcomes.stages[name], Built)]
        return stages, published, [executions(shared, name) for name in names]

    made, first, executed = build("once", "the same")
    assert ([stage.how for stage in made], first.new, executed) == (["built"] * 3, True, [1, 1, 1])
    before = stored(registry, registry_server.storage)
    again, second, executed = build("twice", "the same")
    assert [stage.how for stage in again] == ["built", "reused", "reused"]
    assert (second.tag, second.digest, second.new, executed) == (first.tag, first.digest, False, [2, 1, 1])
    # All that is new is the key by which the same bundle is found the next time.
    after = stored(registry, registry_server.storage)
    written = dict(after.items() - before.items())
    assert before.keys() <= after.keys() and {*written.values()} == {again[0].digest}
    assert all(f"/_manifests/tags/{again[0].key}/" in path for path in written)
    _, third, executed = build("twice", "another")
    assert (third.new, executed) == (True, [3, 1, 2])  # what is closed is grafted
    wait_until(lambda: len(announced()) > 1)
    assert announced() == [first.digest, third.digest]
