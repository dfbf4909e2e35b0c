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
        found = inputs(stage, entries[stage.parent].digest if stage.parent else None)
        key = stages.key_of(found)
        entries[stage.name] = Entry(key, f"sha256:{key}", found, 10.0)
    return entries


def planned(graph: Graph, ledger: Mapping[str, Entry], lost: Collection[str] = ()) -> Plan:
    there = {entry.key: entry.digest for name, entry in ledger.items() if name not in lost}

    def find(keys: Collection[str]) -> Mapping[str, str]:
        return {key: there[key] for key in keys if key in there}

    return plan.make(graph, inputs, layer_key, find, there, ledger)


def changed(*new: Stage) -> Graph:
    of_these = {stage.name: stage for stage in new}
    return Graph({name: of_these.get(name, stage) for name, stage in GRAPH.stages.items()}, GRAPH.tops)


def actions(found: Plan) -> dict[str, str]:
    return {name: step.action.value for name, step in found.steps.items()}


def test_nothing_changed_nothing_is_built() -> None:
    found = planned(GRAPH, built(GRAPH))
    assert found.count(Action.reuse) == len(GRAPH.stages)
    assert all(step.digest and step.key and not step.reason and not step.seconds for step in found.steps.values())


def test_what_was_never_built_is_built() -> None:
    found = planned(GRAPH, {})
    assert set(actions(found).values()) == {"build"}
    assert {step.reason for step in found.steps.values()} == {"it was never built"}


def test_a_changed_base_is_built_and_the_others_wait() -> None:
    found = planned(changed(replace(BASE, system=("tmux=3.4",))), built(GRAPH))
    assert actions(found) == {"base": "build", "bundle": "wait", "other": "wait", "ide": "wait"}
    assert found.steps["base"].reason == "system tmux: 3.3 → 3.4"
    assert "unless base comes out as it was" in found.steps["other"].reason


def test_what_changes_itself_does_not_only_wait() -> None:
    graph = changed(replace(BASE, system=("tmux=3.4",)), replace(IDE, text="RUN two\nRUN four"))
    found = planned(graph, built(GRAPH))
    assert actions(found) == {"base": "build", "bundle": "wait", "other": "wait", "ide": "build"}
    assert found.steps["ide"].reason == "instructions text: RUN three → RUN four"


def test_one_leaf_changed_one_stage_is_built() -> None:
    found = planned(changed(replace(OTHER, text="RUN another")), built(GRAPH))
    assert actions(found) == {"base": "reuse", "bundle": "reuse", "ide": "reuse", "other": "build"}


def test_what_the_registry_lost_is_built() -> None:
    found = planned(GRAPH, built(GRAPH), lost=["bundle"])
    assert actions(found) == {"base": "reuse", "bundle": "build", "other": "reuse", "ide": "wait"}
    assert found.steps["bundle"].reason == "the registry doesn't have it any more"


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
    found = planned(changed(replace(BASE, text="ADD other.tar /")), built(GRAPH))
    assert plan.urgency(GRAPH, found) == {"base": 30.0, "bundle": 20.0, "ide": 10.0, "other": 10.0}
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
    found = planned_closed(replace(BASE, system=("tmux=3.4",)), PYTHON, FILES)
    assert actions(found) == {"base": "build", "python": "graft", "files": "graft", "runtime": "graft"}
    assert found.steps["python"].reason == "its layer is there; only base is another"


def test_a_closed_stage_whose_layer_was_never_made_waits() -> None:
    found = planned_closed(replace(BASE, system=("tmux=3.4",)), PYTHON)
    assert actions(found) == {"base": "build", "python": "graft", "files": "wait", "runtime": "graft"}


def test_a_layer_that_two_images_want_is_made_with_the_first() -> None:
    pair = [replace(FILES, name=f"{parent}-files", parent=parent) for parent in ("bundle", "other")]
    graph = Graph({**GRAPH.stages, **{stage.name: stage for stage in pair}}, {})
    found = planned(graph, {})
    assert actions(found)["bundle-files"] == "build" and actions(found)["other-files"] == "graft"
    step = found.steps["other-files"]
    assert (step.reason, step.seconds) == ("its layer is made with bundle-files", 0.0)


def test_what_is_grafted_above_a_graft_goes_together_with_it() -> None:
    patched, other = replace(BASE, system=("tmux=3.4",)), replace(FILES, parent="base", name="other")
    graph = Graph({**CLOSED.stages, "base": patched, "other": other}, CLOSED.tops)
    found = planned_closed(patched, PYTHON, FILES)
    steps = {**found.steps, "other": replace(found.steps["files"], stage="other")}
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
    found = planned(patched, before)
    assert actions(found) == {"base": "build", "wheels": "wait", "python": "wait"}
    assert list(plan.jobs(patched, found)) == ["base", "python"]
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
    found = planned(newer, before)
    assert list(actions(found).items()) == [("base", "reuse"), ("wheels", "build"), ("python", "build")]
    assert found.steps["wheels"].reason == "system gcc: 12.2 → 12.3"
    assert found.steps["python"].reason == "wheels system gcc: 12.2 → 12.3"
    assert plan.urgency(newer, found) == {"python": 10.0, "wheels": 110.0, "base": 110.0}


def test_a_layer_has_the_same_key_on_every_parent_and_another_for_other_contents() -> None:
    assert layer_key(PYTHON, None) == layer_key(replace(PYTHON, parent="other"), None)
    assert layer_key(PYTHON, None) != layer_key(replace(PYTHON, abi={"python": "py312"}), None)
    assert layer_key(PYTHON, None) != layer_key(PYTHON, "a layer below into whose folders it writes")
    assert layer_key(FILES, None) == layer_key(FILES, "a layer below")
    assert layer_key(BASE, None) is None


@given(NAMES, NAMES)
def test_what_is_planned_to_be_reused_needs_nothing_that_is_built(touched: set[str], lost: set[str]) -> None:
    graph = changed(*(replace(GRAPH.stages[name], text="RUN changed") for name in touched))
    found = planned(graph, built(GRAPH), lost)
    for top in graph.tops.values():
        seen = [found.steps[stage.name].action for stage in graph.ancestry(top)]
        reused = [action is Action.reuse for action in seen]
        assert reused == sorted(reused, reverse=True)
    assert touched <= {name for name, step in found.steps.items() if step.action is Action.build}


def test_a_layer_that_is_there_is_the_reason_whatever_the_last_build_of_that_name_was() -> None:
    other = replace(PYTHON, text="RUN install something else")
    key = layer_key(PYTHON, None)
    ledger = built(Graph({**CLOSED.stages, PYTHON.name: other}, CLOSED.tops))
    found = plan.make(CLOSED, inputs, layer_key, lambda _: {}, {key} if key else (), ledger)
    step = found.steps["python"]
    assert (step.action, step.reason) == (Action.graft, "its layer is there; only base is another")
    assert step.changes


@pytest.mark.parametrize("prefix", ["sha256:", ""])
def test_of_digests_the_first_digits_are_shown(prefix: str) -> None:
    changed = Difference("parent", "digest", prefix + "a" * 64, prefix + "b" * 64)
    assert plan.describe(changed) == f"parent digest: {'a' * 12} → {'b' * 12}"
