"""Builders that meet, hang, or give something else: each stage is executed once, and others go on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from flows.core import progress
from flows.core.errors import RefitError
from flows.core.progress import State
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.builder.workspace import recover
from flows.images.registry import Registry
from flows.images.stages import Graph, Kind
from tests.support import tiny
from tests.support.building import (
    build,
    builder_process,
    carried_out,
    digests,
    executions,
    graph_of,
    matrix,
    nap_of,
    needing_wheels,
    programs,
    results,
)
from tests.support.killing import kill
from tests.support.leftovers import assert_clean, sleepers
from tests.support.processes import in_a_process
from tests.support.waiting import wait_until


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
        blind.setattr(builder, "_find", lambda *_, **__: None)
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
