"""The plan of a release: what is reused, built, or has to wait, and why."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.images import plan, stages
from flows.images.plan import Action, Plan
from flows.images.stages import Difference, Entry, Graph, Inputs, Kind, Stage

BASE = Stage("base", Kind.bootstrap, None, "ADD base.tar /", system=("tmux=3.3",))
BUNDLE = Stage("bundle", Kind.instructions, "base", "RUN one")
OTHER = Stage("other", Kind.instructions, "base", "RUN other")
IDE = Stage("ide", Kind.instructions, "bundle", "RUN two\nRUN three")
GRAPH = stages.join({"ide": (BASE, BUNDLE, IDE), "other": (BASE, OTHER)})


def inputs(stage: Stage, parent: str | None) -> Inputs:
    return stages.inputs(stage, parent, {"buildah": "1"})


def layer_key(stage: Stage, below: str | None) -> str | None:
    return stages.layer_key(stage, below, {"buildah": "1"})


def built(graph: Graph) -> dict[str, Entry]:
    """The ledger after all of a graph was built; each digest tells its key."""
    entries: dict[str, Entry] = {}
    for stage in graph.stages.values():
        result = inputs(stage, entries[stage.parent].digest if stage.parent else None)
        key = stages.key_of(result)
        entries[stage.name] = Entry(key, f"sha256:{key}", result, 10.0)
    return entries


def planned(graph: Graph, ledger: Mapping[str, Entry], lost: Collection[str] = ()) -> Plan:
    there = {entry.key: entry.digest for name, entry in ledger.items() if name not in lost}

    def find(keys: Collection[str]) -> Mapping[str, str]:
        return {key: there[key] for key in keys if key in there}

    return plan.make(graph, inputs, layer_key, find, there, ledger)


def changed(*new: Stage) -> Graph:
    of_these = {stage.name: stage for stage in new}
    return Graph({name: of_these.get(name, stage) for name, stage in GRAPH.stages.items()}, GRAPH.tops)


def actions(new_plan: Plan) -> dict[str, str]:
    return {name: step.action.value for name, step in new_plan.steps.items()}


def test_nothing_changed_nothing_is_built() -> None:
    new_plan = planned(GRAPH, built(GRAPH))
    assert new_plan.count(Action.reuse) == len(GRAPH.stages)
    assert all(step.digest and step.key and not step.reason and not step.seconds for step in new_plan.steps.values())


def test_what_was_never_built_is_built() -> None:
    new_plan = planned(GRAPH, {})
    assert set(actions(new_plan).values()) == {"build"}
    assert {step.reason for step in new_plan.steps.values()} == {"it was never built"}


def test_a_changed_base_is_built_and_the_others_wait() -> None:
    new_plan = planned(changed(replace(BASE, system=("tmux=3.4",))), built(GRAPH))
    assert actions(new_plan) == {"base": "build", "bundle": "wait", "other": "wait", "ide": "wait"}
    assert new_plan.steps["base"].reason == "system tmux: 3.3 → 3.4"
    assert "unless base comes out as it was" in new_plan.steps["other"].reason


def test_what_changes_itself_does_not_only_wait() -> None:
    graph = changed(replace(BASE, system=("tmux=3.4",)), replace(IDE, text="RUN two\nRUN four"))
    new_plan = planned(graph, built(GRAPH))
    assert actions(new_plan) == {"base": "build", "bundle": "wait", "other": "wait", "ide": "build"}
    assert new_plan.steps["ide"].reason == "instructions text: RUN three → RUN four"


def test_one_leaf_changed_one_stage_is_built() -> None:
    new_plan = planned(changed(replace(OTHER, text="RUN another")), built(GRAPH))
    assert actions(new_plan) == {"base": "reuse", "bundle": "reuse", "ide": "reuse", "other": "build"}


def test_what_the_registry_lost_is_built() -> None:
    new_plan = planned(GRAPH, built(GRAPH), lost=["bundle"])
    assert actions(new_plan) == {"base": "reuse", "bundle": "build", "other": "reuse", "ide": "wait"}
    assert new_plan.steps["bundle"].reason == "the registry doesn't have it any more"


def test_of_a_long_line_the_part_that_changed_is_shown() -> None:
    texts = [f"RUN {'very ' * 20}{word} step {'and on ' * 20}" for word in ("old", "new")]
    before = built(Graph({**GRAPH.stages, "other": replace(OTHER, text=texts[0])}, GRAPH.tops))
    reason = planned(changed(replace(OTHER, text=texts[1])), before).steps["other"].reason
    old, _, new = reason.removeprefix("instructions text: ").partition(" → ")
    assert old.startswith("…") and " old step and on" in old and old.endswith("…")
    assert " new step and on" in new


def test_many_changes_are_counted() -> None:
    many = replace(OTHER, files={f"file{number}": b"" for number in range(plan.MOST_NAMED + 3)})
    assert planned(changed(many), built(GRAPH)).steps["other"].reason.endswith("and 3 more")


def test_the_longest_path_comes_first() -> None:
    new_plan = planned(changed(replace(BASE, text="ADD other.tar /")), built(GRAPH))
    assert plan.urgency(GRAPH, new_plan) == {"base": 30.0, "bundle": 20.0, "ide": 10.0, "other": 10.0}
    assert set(plan.urgency(GRAPH, planned(GRAPH, built(GRAPH))).values()) == {0.0}


NAMES = st.sets(st.sampled_from(sorted(GRAPH.stages)))


PYTHON = Stage("python", Kind.closed, "base", "RUN /mnt/uv pip install", writes=("/opt/app-root",))
FILES = Stage("files", Kind.closed, "python", "COPY files/start /usr/local/bin/start", {"files/start": b"start"})
RUNTIME = Stage("runtime", Kind.closed, "python", 'CMD ["sleep"]')
CLOSED = stages.join({"files": (BASE, PYTHON, FILES), "runtime": (BASE, PYTHON, RUNTIME)})


def planned_closed(base: Stage, *layers: Stage) -> Plan:
    """The plan with this base, where only the layers of these stages were made, on another base."""
    graph = Graph({**CLOSED.stages, base.name: base}, CLOSED.tops)
    below = layer_key(PYTHON, None)
    keys = {stage.name: layer_key(stage, None if stage is PYTHON else below) for stage in layers}
    return plan.make(graph, inputs, layer_key, lambda _: {}, {key for key in keys.values() if key}, built(CLOSED))


def test_closed_stages_are_grafted_onto_a_new_base() -> None:
    new_plan = planned_closed(replace(BASE, system=("tmux=3.4",)), PYTHON, FILES)
    assert actions(new_plan) == {"base": "build", "python": "graft", "files": "graft", "runtime": "graft"}
    assert new_plan.steps["python"].reason == "its layer is there; only base is another"


def test_a_closed_stage_whose_layer_was_never_made_waits() -> None:
    new_plan = planned_closed(replace(BASE, system=("tmux=3.4",)), PYTHON)
    assert actions(new_plan) == {"base": "build", "python": "graft", "files": "wait", "runtime": "graft"}


def test_a_layer_that_two_images_want_is_made_with_the_first() -> None:
    pair = [replace(FILES, name=f"{parent}-files", parent=parent) for parent in ("bundle", "other")]
    graph = Graph({**GRAPH.stages, **{stage.name: stage for stage in pair}}, {})
    new_plan = planned(graph, {})
    assert actions(new_plan)["bundle-files"] == "build" and actions(new_plan)["other-files"] == "graft"
    step = new_plan.steps["other-files"]
    assert (step.reason, step.seconds) == ("its layer is made with bundle-files", 0.0)


def test_what_is_grafted_above_a_graft_goes_together_with_it() -> None:
    patched, other = replace(BASE, system=("tmux=3.4",)), replace(FILES, parent="base", name="other")
    graph = Graph({**CLOSED.stages, "base": patched, "other": other}, CLOSED.tops)
    new_plan = planned_closed(patched, PYTHON, FILES)
    steps = {**new_plan.steps, "other": replace(new_plan.steps["files"], stage="other")}
    names = {name: [one.name for one in above] for name, above in plan.together(graph, Plan(steps)).items()}
    assert names == {"python": ["files", "runtime"], "other": []}
    # Stages that wait are left out, and so are those that stand on them.
    waiting = planned_closed(patched, FILES)
    assert actions(waiting)["python"] == "wait"
    assert {name: [*above] for name, above in plan.together(CLOSED, waiting).items()} == {"files": [], "runtime": []}


def test_what_is_grafted_with_a_layer_that_is_still_to_be_made_goes_by_itself() -> None:
    pair = [replace(FILES, name=f"{parent}-files", parent=parent) for parent in ("bundle", "other")]
    graph = Graph({**GRAPH.stages, **{stage.name: stage for stage in pair}}, {})
    assert plan.together(graph, planned(graph, {})) == {}


WHEELS = Stage("wheels", Kind.wheels, "base", "RUN pip wheel", system=("gcc=12.2",))


def test_wheels_that_may_not_be_needed_are_no_job_of_their_own() -> None:
    graph = stages.join({"it": (BASE, replace(PYTHON, wheels=WHEELS))})
    before = built(graph)
    patched = stages.join({"it": (replace(BASE, system=("tmux=3.4",)), graph.stages["python"])})
    new_plan = planned(patched, before)
    assert actions(new_plan) == {"base": "build", "wheels": "wait", "python": "wait"}
    assert list(plan.jobs(patched, new_plan)) == ["base", "python"]
    first = planned(graph, {})
    assert list(plan.jobs(graph, first)) == ["base", "wheels", "python"]


def test_wheels_are_planned_where_a_layer_has_to_be_made_of_them() -> None:
    python = replace(PYTHON, wheels=WHEELS)
    graph = stages.join({"it": (BASE, python)})
    before = built(graph)
    assert actions(planned(graph, before)) == {"base": "reuse", "python": "reuse"}
    key = stages.key(WHEELS, None, {"buildah": "1"})
    before["wheels"] = Entry(key, "sha256:wheels", inputs(WHEELS, None), 100.0)

    more = stages.join({"it": (BASE, replace(python, text="RUN /mnt/uv pip install more"))})
    assert actions(planned(more, before)) == {"base": "reuse", "wheels": "reuse", "python": "build"}
    # With another base, the layer is looked for by its key alone; the wheels are there.
    patched = stages.join({"it": (replace(BASE, system=("tmux=3.4",)), python)})
    assert actions(planned(patched, before)) == {"base": "build", "wheels": "reuse", "python": "wait"}

    newer = stages.join({"it": (BASE, replace(python, wheels=replace(WHEELS, system=("gcc=12.3",))))})
    new_plan = planned(newer, before)
    assert list(actions(new_plan).items()) == [("base", "reuse"), ("wheels", "build"), ("python", "build")]
    assert new_plan.steps["wheels"].reason == "system gcc: 12.2 → 12.3"
    assert new_plan.steps["python"].reason == "wheels system gcc: 12.2 → 12.3"
    assert plan.urgency(newer, new_plan) == {"python": 10.0, "wheels": 110.0, "base": 110.0}


def test_a_layer_has_the_same_key_on_every_parent_and_another_for_other_contents() -> None:
    assert layer_key(PYTHON, None) == layer_key(replace(PYTHON, parent="other"), None)
    assert layer_key(PYTHON, None) != layer_key(replace(PYTHON, abi={"python": "py312"}), None)
    assert layer_key(PYTHON, None) != layer_key(PYTHON, "a layer below into whose folders it writes")
    assert layer_key(FILES, None) == layer_key(FILES, "a layer below")
    assert layer_key(BASE, None) is None


@given(NAMES, NAMES)
def test_what_is_planned_to_be_reused_needs_nothing_that_is_built(touched: set[str], lost: set[str]) -> None:
    graph = changed(*(replace(GRAPH.stages[name], text="RUN changed") for name in touched))
    new_plan = planned(graph, built(GRAPH), lost)
    for top in graph.tops.values():
        seen = [new_plan.steps[stage.name].action for stage in graph.ancestry(top)]
        reused = [action is Action.reuse for action in seen]
        assert reused == sorted(reused, reverse=True)
    assert touched <= {name for name, step in new_plan.steps.items() if step.action is Action.build}


def test_a_layer_that_is_there_is_the_reason_whatever_the_last_build_of_that_name_was() -> None:
    other = replace(PYTHON, text="RUN install something else")
    key = layer_key(PYTHON, None)
    ledger = built(Graph({**CLOSED.stages, PYTHON.name: other}, CLOSED.tops))
    new_plan = plan.make(CLOSED, inputs, layer_key, lambda _: {}, {key} if key else (), ledger)
    step = new_plan.steps["python"]
    assert (step.action, step.reason) == (Action.graft, "its layer is there; only base is another")
    assert step.changes


@pytest.mark.parametrize("prefix", ["sha256:", ""])
def test_of_digests_the_first_digits_are_shown(prefix: str) -> None:
    changed = Difference("parent", "digest", prefix + "a" * 64, prefix + "b" * 64)
    assert plan.describe(changed) == f"parent digest: {'a' * 12} → {'b' * 12}"
