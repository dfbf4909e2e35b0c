"""Several machines share the stages of one run, and some of them die, hang, or come too late.

All have a storage of their own; registry and database are what they share.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import psutil
import pytest
from sqlalchemy.exc import OperationalError

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.leases import LeaseTaken
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.builder.build_lock import pruning
from flows.images.builder.stage_builder import StageBuilder
from flows.images.builder.workspace import recover
from flows.images.distributed.build_worker import BuildWorker, Unlike
from flows.images.distributed.job_queue import Work
from flows.images.distributed.remote_builder import NoBuilder
from flows.images.registry import Registry
from flows.images.signed import signature_tag
from flows.images.stages import Graph
from tests.support import tiny
from tests.support.building import digests, executions, graph_of, matrix, nap_of, programs
from tests.support.killing import kill
from tests.support.leftovers import assert_clean, sleepers
from tests.support.machine import RegistryServer, private_home, serve_registry
from tests.support.machines import HERE, builder, hand_over, handing
from tests.support.processes import in_a_process
from tests.support.waiting import PATIENCE, some_long, wait_until


@pytest.fixture(scope="module")
def own_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One in which nothing is yet."""
    with serve_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def pair(own_registry: RegistryServer, tmp_path: Path) -> Iterator[tuple[Settings, Settings]]:
    """Two machines that share registry and database."""
    shared = {"repository": secrets.token_hex(4), "database_url": f"sqlite:///{tmp_path}/shared.db"}
    with (
        private_home(tmp_path / "one", own_registry.port, **shared) as one,
        private_home(tmp_path / "two", own_registry.port, **shared) as two,
    ):
        yield one, two


def built_by_all(pair: tuple[Settings, Settings], graph: Graph) -> dict[str, Built]:
    with ThreadPoolExecutor(len(graph.stages)) as pool, handing(pair[0], graph) as handover:
        processes = [builder(one, handover, f"host{number}") for number, one in enumerate(pair)]
        wait_until(lambda: len(handover.jobs.builders()) == len(pair))  # or one may build most before the other begins
        built = {name: future.result() for name, future in hand_over(handover, graph, pool).items()}
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return built


def test_two_machines_share_a_run_and_execute_each_stage_once(pair: tuple[Settings, Settings]) -> None:
    one_at_a_time = [one.model_copy(update={"builds_at_once": 1}) for one in pair]
    graph = matrix(nap=1.0)
    built = built_by_all((one_at_a_time[0], one_at_a_time[1]), graph)
    assert {name: sum(executions(one, name) for one in pair) for name in graph.stages} == dict.fromkeys(graph.stages, 1)
    assert all(sum(executions(one, name) for name in graph.stages) > 1 for one in pair), "one of them had nothing to do"
    assert {stage.how for stage in built.values()} == {"built"}
    again = built_by_all(pair, graph)
    assert {stage.how for stage in again.values()} == {"reused"} and digests(again) == digests(built)
    for one in pair:
        assert_clean(one)


@pytest.mark.long
def test_a_machine_that_is_killed_leaves_one_stage_to_another(pair: tuple[Settings, Settings]) -> None:
    nap, (one, two) = nap_of(4), pair
    graph = graph_of(tiny.root(), tiny.on("root", "first"), tiny.on("first", "slow", nap))
    with ThreadPoolExecutor(3) as pool, handing(one, graph) as handover:
        first = builder(one, handover, "first")
        futures = hand_over(handover, graph, pool)
        wait_until(lambda: sleepers(str(nap)))
        second = builder(two, handover, "second")
        wait_until(lambda: "second" in handover.jobs.builders())
        kill(first)
        assert {name: future.result().how for name, future in futures.items()} == dict.fromkeys(graph.stages, "built")
    second.join()
    assert second.exitcode == 0
    assert [executions(two, name) for name in graph.stages] == [0, 0, 1]
    assert recover(one) == 1
    assert sleepers(str(nap)) == []
    for each in pair:
        assert_clean(each)


@pytest.mark.long
def test_two_runs_at_once_share_machines_and_build_each_stage_once(pair: tuple[Settings, Settings]) -> None:
    graph = matrix()
    with (
        ThreadPoolExecutor(2 * len(graph.stages)) as pool,
        handing(pair[0], graph) as one,
        handing(pair[1], graph) as two,
    ):
        processes = [builder(each, run, each.home.name) for each in pair for run in (one, two)]
        built = [
            {name: future.result() for name, future in futures.items()}
            for futures in [hand_over(run, graph, pool) for run in (one, two)]
        ]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert digests(built[0]) == digests(built[1])
    assert {name: sum(executions(one, name) for one in pair) for name in graph.stages} == dict.fromkeys(graph.stages, 1)
    for each in pair:
        assert_clean(each)


def run_until_told_to_end(settings: Settings, graph: Graph) -> None:
    """The run of a release; it writes into its home what builders call it."""

    def leave(*_: object) -> None:
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, leave)
    with ThreadPoolExecutor(len(graph.stages)) as pool, handing(settings, graph) as handover:
        (settings.folder() / "run").write_text(handover.jobs.run)
        hand_over(handover, graph, pool)
        while True:
            time.sleep(0.05)


@pytest.mark.parametrize("end", some_long([psutil.Process.terminate, psutil.Process.kill], psutil.Process.terminate))
def test_nothing_runs_on_any_machine_when_the_run_has_ended(
    pair: tuple[Settings, Settings], end: Callable[[psutil.Process], None]
) -> None:
    naps = [nap_of(3600), nap_of(3600)]
    graph = graph_of(tiny.root(), *(tiny.on("root", f"slow{nap}", nap) for nap in naps))
    run = in_a_process(lambda: run_until_told_to_end(pair[0], graph))
    name = pair[0].home / "run"
    wait_until(lambda: name.exists() and name.read_text())
    machines = [
        in_a_process(lambda one=one: BuildWorker(one, name.read_text(), [HERE]).serve())
        for one in (one.model_copy(update={"builds_at_once": 1, "machine": one.home.name}) for one in pair)
    ]
    wait_until(lambda: all(sleepers(str(nap)) for nap in naps))
    with pytest.raises(LeaseTaken, match="building"), pruning(open_database(pair[0].database), pair[0], wait=0):
        pytest.fail("it was pruned while other machines built")
    end(psutil.Process(run.pid))
    for process in (run, *machines):
        process.join(PATIENCE)
    assert [process.exitcode for process in machines] == [0, 0]
    assert not any(sleepers(str(nap)) for nap in naps)
    for one in pair:
        assert not programs(one, "build")
        assert_clean(one)
    registry = Registry(pair[0])
    tags = {*registry.tags(registry.stages)}
    assert len(tags - {*map(signature_tag, tags), "unfinished"}) == 1, "half a stage was taken for a whole one"


@pytest.mark.long
def test_a_builder_that_is_told_to_end_leaves_its_stage_to_others(pair: tuple[Settings, Settings]) -> None:
    """It is cancelled in Prefect: its programs have not failed."""
    nap, (one, two) = nap_of(2), pair
    graph = graph_of(tiny.root(), tiny.on("root", "slow", nap))

    def leave(*_: object) -> None:
        raise SystemExit(7)

    def work() -> None:
        signal.signal(signal.SIGTERM, leave)
        BuildWorker(one, handover.jobs.run, [HERE]).serve()

    with ThreadPoolExecutor(2) as pool, handing(one, graph) as handover:
        first = in_a_process(work)
        futures = hand_over(handover, graph, pool)
        wait_until(lambda: sleepers(str(nap)))
        first.terminate()
        first.join()
        assert first.exitcode == 7
        second = builder(two, handover, "second")
        assert futures["slow"].result().how == "built"
    second.join()
    assert (executions(one, "slow"), executions(two, "slow")) == (0, 1)
    assert_clean(one)


@pytest.mark.long
def test_a_machine_that_stands_still_loses_its_stage_and_comes_too_late(pair: tuple[Settings, Settings]) -> None:
    nap, (one, two) = nap_of(3), pair
    graph = graph_of(tiny.root(), tiny.on("root", "slow", nap))
    with ThreadPoolExecutor(2) as pool, handing(two, graph) as handover:
        first = builder(one, handover, "first")
        futures = hand_over(handover, graph, pool)
        wait_until(lambda: sleepers(str(nap)))
        assert first.pid
        psutil.Process(first.pid).suspend()
        second = builder(two, handover, "second")
        built = futures["slow"].result(PATIENCE)
        assert built.how == "built" and executions(two, "slow") == 1
        psutil.Process(first.pid).resume()
        wait_until(lambda: not [*one.folder("running").iterdir()])
        assert executions(one, "slow") == 1 and "first" in handover.jobs.builders()
    for process in (first, second):
        process.join()
        assert process.exitcode == 0
    assert Registry(two).manifest(Registry(two).stages, built.key).digest == built.digest
    for each in pair:
        assert_clean(each)


@pytest.mark.long
def test_a_stage_that_hangs_is_ended_and_the_others_are_built(pair: tuple[Settings, Settings]) -> None:
    nap, hasty = nap_of(3600), pair[0].model_copy(update={"build_timeout_seconds": 8.0, "builds_at_once": 2})
    graph = graph_of(tiny.root(), tiny.on("root", "hangs", nap), tiny.on("root", "other"))
    with ThreadPoolExecutor(3) as pool, handing(hasty, graph) as handover:
        process = builder(hasty, handover, "hasty")
        futures = hand_over(handover, graph, pool)
        with pytest.raises(RefitError, match="'hangs' takes too long") as caught:
            futures["hangs"].result()
        assert "build_timeout_seconds" in caught.value.hint
        assert futures["other"].result().how == "built"
    process.join()
    assert process.exitcode == 0
    assert sleepers(str(nap)) == []
    assert_clean(hasty)


def test_nobody_is_left_waiting_when_the_run_has_ended(pair: tuple[Settings, Settings]) -> None:
    graph = graph_of(tiny.root())
    with ThreadPoolExecutor(1) as pool:
        with handing(pair[0], graph) as handover:
            waiting = hand_over(handover, graph, pool)["root"]
            wait_until(handover.jobs.states)
        for future in (waiting, hand_over(handover, graph, pool)["root"]):
            with pytest.raises(RefitError, match="The run ended before root was built"):
                future.result(PATIENCE)


def test_a_database_that_is_away_for_a_moment_is_asked_again(
    pair: tuple[Settings, Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(tiny.root())
    with ThreadPoolExecutor(1) as pool, handing(pair[0], graph) as handover:
        add, calls = handover.jobs.add, count(1)

        def away(system: str, urgency: float, work: Work) -> None:
            add(system, urgency, work)
            if next(calls) == 1:  # it was heard, but nobody learned that it was
                raise OperationalError("add", {}, Exception("the connection broke"))

        monkeypatch.setattr(handover.jobs, "add", away)
        process = builder(pair[1], handover, "other")
        assert hand_over(handover, graph, pool)["root"].result().how == "built"
        assert next(calls) >= 3
    process.join()


def test_a_stage_for_which_nobody_comes_is_reported(pair: tuple[Settings, Settings]) -> None:
    """There is a builder, but it builds for another operating system."""
    impatient, graph = pair[0].model_copy(update={"builder_timeout_seconds": 5.0}), graph_of(tiny.root())
    with ThreadPoolExecutor(1) as pool, handing(impatient, graph, "deb13") as handover:
        process = builder(pair[1], handover, "other")
        wait_until(handover.jobs.builders)
        with pytest.raises(NoBuilder, match="no builder for deb13") as caught:
            hand_over(handover, graph, pool)["root"].result()
        assert caught.value.why == "These are there: other (for deb12)."
        assert handover.jobs.states() == ()
    process.join()
    assert executions(pair[1], "root") == 0


def test_a_machine_with_other_programs_builds_nothing_for_a_run(pair: tuple[Settings, Settings]) -> None:
    with handing(pair[0], graph_of(tiny.root())) as handover:
        handover.jobs.add(HERE, 1.0, Work(tiny.root(), None, True, {"buildah": "buildah version 99"}))
        with pytest.raises(Unlike, match="odd can't build for this run") as caught:
            BuildWorker(pair[1].model_copy(update={"machine": "odd"}), handover.jobs.run, [HERE]).serve()
        assert "buildah version 99" in caught.value.why
        [state] = handover.jobs.states()
        assert state.outcome is None and not state.taken


def test_what_a_machine_with_other_programs_is_at_comes_to_its_end(pair: tuple[Settings, Settings]) -> None:
    root, other = tiny.root(), replace(tiny.root(), name="other")
    tools = StageBuilder(pair[0], Registry(pair[0])).tools(root)
    with handing(pair[0], graph_of(root)) as handover:
        handover.jobs.add(HERE, 2.0, Work(root, None, True, tools))
        handover.jobs.add(HERE, 1.0, Work(other, None, True, {**tools, "buildah": "buildah version 99"}))
        odd = pair[1].model_copy(update={"machine": "odd", "builds_at_once": 2})
        with pytest.raises(Unlike):
            BuildWorker(odd, handover.jobs.run, [HERE]).serve()
        outcomes = {state.stage: state.outcome for state in handover.jobs.states()}
    assert outcomes["root"] and outcomes["root"].result().how == "built"
    assert outcomes["other"] is None
