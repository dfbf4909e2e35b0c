"""Builds are killed: whole stages stay, only the rest is done again."""

from __future__ import annotations

import re
import secrets
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.process import BaseProcess

import pytest

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Builder
from flows.images.ledger import Ledger
from flows.images.registry import Registry
from flows.images.signed import signature_tag
from flows.images.stages import Graph, Kind
from tests.support import tiny
from tests.support.building import (
    BIG,
    DEATHS,
    TRIES,
    big,
    build,
    builder_process,
    deadly,
    digests,
    elsewhere,
    executions,
    graph_of,
    nap_of,
    needing_wheels,
    programs,
    pushed,
)
from tests.support.killing import kill
from tests.support.leftovers import assert_clean, sleepers
from tests.support.machine import RegistryServer
from tests.support.processes import in_a_process
from tests.support.waiting import some_long, wait_until

KEY = re.compile(r"[0-9a-f]{64}")


def chain() -> Graph:
    """A root, a closed stage, and one on top."""
    return graph_of(tiny.root(), tiny.on("root", "closed", kind=Kind.closed), tiny.on("closed", "top"))


@pytest.fixture(scope="module")
def expected(mine: Settings) -> dict[str, str]:
    """The digests of the chain as somebody gets them whom nobody kills."""
    return digests(build(elsewhere(mine, "undisturbed"), chain()))


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
    arm, counts = POINTS[where]
    before = [executions(fresh, name) for name in expected]

    def work() -> None:
        arm()
        build(fresh, chain())

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the process never came there"
    assert digests(build(fresh, chain())) == expected
    executed = [executions(fresh, name) - count for name, count in zip(expected, before, strict=True)]
    assert tuple(executed) == counts
    assert {built.how for built in build(fresh, chain()).values()} == {"reused"}
    assert_clean(fresh)


@DEATHS
def test_killed_while_a_step_runs(fresh: Settings, death: Callable[[BaseProcess], None]) -> None:
    for _ in range(TRIES):
        nap = str(nap_of(3))
        graph = graph_of(tiny.root(), tiny.on("root", "slow", float(nap)))
        process = in_a_process(partial(build, fresh, graph))
        wait_until(lambda nap=nap, process=process: sleepers(nap) or not process.is_alive())
        death(process)
        left = bool(sleepers(nap))
        if process.exitcode == -signal.SIGKILL and left == (death is kill):
            break
    assert left == (death is kill), "the step was over too early"
    built = build(fresh, graph)
    assert [stage.how for stage in built.values()] == ["reused", "built"]
    log = built["slow"].log
    assert log and tiny.executions(log.read_text()) == 1
    assert_clean(fresh)


@pytest.mark.parametrize("during", some_long(["wheels", "top"], short="top"))
def test_killed_while_wheels_are_made_or_installed(mine: Settings, during: str) -> None:
    for _ in range(TRIES):
        fresh, nap = elsewhere(mine, secrets.token_hex(4)), nap_of(3)
        top = needing_wheels("top", *((0, nap) if during == "wheels" else (nap, 0)))
        graph, count = graph_of(tiny.root(), top), executions(fresh, "wheels")
        process = in_a_process(partial(build, fresh, graph))
        wait_until(lambda nap=nap, process=process: sleepers(str(nap)) or not process.is_alive())
        kill(process)
        if sleepers(str(nap)):
            break
    reason = build(fresh, graph)["top"].reason
    assert reason.startswith("wheels was built as" if during == "wheels" else "wheels was reused as")
    assert executions(fresh, "wheels") == count + 1
    assert_clean(fresh)


@DEATHS
def test_killed_while_a_layer_is_pushed(
    fresh: Settings, registry_server: RegistryServer, death: Callable[[BaseProcess], None]
) -> None:
    def is_pushed() -> bool:
        return bool(programs(fresh, "push")) and pushed(registry_server.storage, fresh) > BIG // 10

    for _ in range(TRIES):
        graph = graph_of(tiny.root(), big())
        process = in_a_process(partial(build, fresh, graph))
        wait_until(lambda process=process: is_pushed() or not process.is_alive())
        death(process)
        left = programs(fresh, "push")
        if process.exitcode == -signal.SIGKILL and bool(left) == (death is kill):
            break
    assert bool(left) == (death is kill), "the push was over too early"
    assert [stage.how for stage in build(fresh, graph).values()] == ["reused", "built"]
    assert not any(program.alive for program in left)
    assert_clean(fresh)


def build_until_told_to_end(settings: Settings, graph: Graph) -> None:
    """A flow run: threads build, and the main thread alone hears that it is to end."""

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
