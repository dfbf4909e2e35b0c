"""The plan of a build, stage by stage, with reasons. Pure: the registry's content is asked through functions.

A stage whose parent is built anew has no key yet, because the key has the parent's digest in it: it waits, and if the
parent comes out as it was, it is found again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile, zip_longest

from flows.core.formatting import short, some
from flows.images.grafting.configuration import has_layer
from flows.images.stages import Difference, Entry, Graph, Inputs, Stage, differences, key_of

# The assumed time of a stage that was never built (seconds).
UNKNOWN_SECONDS = 60.0
MOST_NAMED = 5
_LONGEST = 60  # characters of a value that say enough of it
_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{64}")
_BEFORE = 12  # characters that are the same, shown before those that differ


class Action(StrEnum):
    """An action on a stage."""

    reuse = "reuse"
    graft = "graft"
    build = "build"
    wait = "wait"


_MADE = (Action.build, Action.wait)


@dataclass(frozen=True)
class Step:
    """The action on one stage.

    Attributes:
        stage: its name.
        action: the action.
        reason: why; empty where it is reused.
        changes: the inputs that it has otherwise than its last build.
        key: its key; none as long as its parent's digest isn't known.
        layer: the key of a closed stage's layer, which is known all the same.
        digest: of the stage that is reused.
        seconds: how long building it took the last time, or is thought to take; 0 where it is reused.
    """

    stage: str
    action: Action
    reason: str = ""
    changes: tuple[Difference, ...] = ()
    key: str | None = None
    layer: str | None = None
    digest: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The plan of a build: stage → step, parents before children; wheels only where they are needed."""

    steps: Mapping[str, Step]

    def count(self, action: Action) -> int:
        """How many stages have this action."""
        return sum(step.action is action for step in self.steps.values())


def make(
    graph: Graph,
    inputs: Callable[[Stage, str | None], Inputs],
    layer_key: Callable[[Stage, str | None], str | None],
    find: Callable[[Collection[str]], Mapping[str, str]],
    layers: Collection[str],
    latest: Mapping[str, Entry],
) -> Plan:
    """Plan all stages of a graph.

    Args:
        graph: the stages to have.
        inputs: a stage and its parent's digest → its inputs.
        layer_key: a stage and the key of the layer below → the key of its own layer.
        find: keys → the digests of those that are in the registry; asked once a level of the graph.
        layers: the keys of the layers that are there; a graft sees whether one fits.
        latest: stage → its last build.
    """
    steps: dict[str, Step] = {}
    makers: dict[str, str] = {}  # key of a layer → the stage that it is made with
    level = [stage for stage in graph.stages.values() if stage.parent is None]
    while level:
        questions = [_ask(stage, steps[stage.parent] if stage.parent else None, inputs, layer_key) for stage in level]
        digests = find([question.key for question in questions if question.key])
        for question in questions:
            name, layer = question.stage.name, question.own_layer
            steps[name] = step = _step(question, digests, layers, latest.get(name), makers.get(layer or ""))
            if layer and step.action is Action.build:
                makers[layer] = name
        level = [child for stage in level for child in graph.children(stage.name)]
    stages = [stage for stage in graph.stages.values() if steps[stage.name].action in _MADE]
    steps |= _wheels(stages, steps, inputs, find, latest)
    return Plan({stage.name: steps[stage.name] for stage in graph.everything() if stage.name in steps})


def jobs(graph: Graph, plan: Plan) -> Mapping[str, Stage]:
    """The jobs of a plan, by name: all stages, and the wheels that are needed for sure.

    Other wheels are made together with the stage that turns out to need them.
    """
    steps = plan.steps
    return {
        stage.name: stage
        for stage in graph.everything()
        if stage.name in graph.stages or (stage.name in steps and steps[stage.name].action is not Action.wait)
    }


def together(graph: Graph, plan: Plan) -> Mapping[str, tuple[Stage, ...]]:
    """Stages that are grafted in one go: stage → the stages above it, lower ones first.

    All are grafted, and their layers are there.
    """
    unmade = {step.layer for step in plan.steps.values() if step.action is Action.build}
    groups: dict[str, list[Stage]] = {}
    lowest: dict[str, str] = {}  # stage → the one with which it goes
    for stage in graph.stages.values():
        step = plan.steps[stage.name]
        if step.action is Action.graft and step.layer not in unmade:
            lowest[stage.name] = lowest.get(stage.parent or "", stage.name)
            groups.setdefault(lowest[stage.name], []).append(stage)
    return {name: tuple(above) for name, (_, *above) in groups.items()}


def _wheels(
    stages: Iterable[Stage],
    steps: Mapping[str, Step],
    inputs: Callable[[Stage, str | None], Inputs],
    find: Callable[[Collection[str]], Mapping[str, str]],
    latest: Mapping[str, Entry],
) -> dict[str, Step]:
    """The steps of the wheels that the stages to be made need, or may need."""
    wheels = {stage.wheels.name: stage.wheels for stage in stages if stage.wheels}
    sure = {stage.wheels.name for stage in stages if stage.wheels and steps[stage.name].action is Action.build}
    wheel_questions = [_ask(stage, None, inputs, lambda *_: None) for stage in wheels.values()]
    digests = find([question.key for question in wheel_questions if question.key]) if wheel_questions else {}
    answers = [_step(question, digests, (), latest.get(question.stage.name)) for question in wheel_questions]
    return {step.stage: step if step.digest or step.stage in sure else _unsure(step) for step in answers}


def _unsure(step: Step) -> Step:
    """The step of wheels of which nobody knows whether they will be needed."""
    return replace(step, action=Action.wait, reason="built if what it is for has to be")


@dataclass(frozen=True)
class _Question:
    """A stage that has to be looked for; it has no key as long as its parent's digest isn't known."""

    stage: Stage
    inputs: Inputs
    key: str | None
    layer: str | None

    @property
    def own_layer(self) -> str | None:
        """The key of its layer; none where it has none that could be carried, or none at all."""
        return self.layer if self.layer and has_layer(self.stage.text) else None


def _ask(
    stage: Stage,
    parent: Step | None,
    inputs: Callable[[Stage, str | None], Inputs],
    layer_key: Callable[[Stage, str | None], str | None],
) -> _Question:
    given = inputs(stage, parent.digest if parent else None)
    settled = parent is None or parent.digest is not None
    return _Question(
        stage, given, key_of(given) if settled else None, layer_key(stage, parent.layer if parent else None)
    )


def urgency(graph: Graph, plan: Plan) -> Mapping[str, float]:
    """Stage → seconds until the last of what needs it is built, itself included: the longest path comes first."""
    longest: dict[str, float] = {}
    above: dict[str, float] = {}
    for stage in reversed(graph.everything()):
        if stage.name not in plan.steps:
            continue
        longest[stage.name] = plan.steps[stage.name].seconds + above.get(stage.name, 0.0)
        for need in stage.needs:
            above[need] = max(above.get(need, 0.0), longest[stage.name])
    return longest


def describe(change: Difference) -> str:
    """An input that changed, for people: `system tmux: 3.3a-3 → 3.3a-4`; of a text the first line that changed."""
    old, new = _differing_lines(_abridged(change.old or ""), _abridged(change.new or ""))
    same = max(0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))) - _BEFORE)
    return f"{change.sort} {change.name}: {_shown(old, same)} → {_shown(new, same)}"


def _abridged(value: str) -> str:
    return short(value) if _DIGEST.fullmatch(value) else value


def _differing_lines(old: str, new: str) -> tuple[str, str]:
    for before, after in zip_longest(old.splitlines(), new.splitlines(), fillvalue=""):
        if before != after:
            return before, after
    return old, new


def _step(
    question: _Question,
    digests: Mapping[str, str],
    layers: Collection[str],
    before: Entry | None,
    maker: str | None = None,
) -> Step:
    """The action on one stage; `maker` is another one that its layer is made with."""
    stage, key = question.stage, question.key
    if digest := digests.get(key or ""):
        return Step(stage.name, Action.reuse, key=key, layer=question.layer, digest=digest)
    changes = differences(before.inputs, question.inputs) if before else ()
    if key is None:  # then the parent's digest is no input yet
        changes = tuple(change for change in changes if change.sort != "parent")
    step = Step(stage.name, Action.build, _reason(changes, before), changes, key, question.layer)
    if question.layer and (question.own_layer is None or question.own_layer in layers):
        # Differences to the last build of that name mean nothing for a layer that was found by all its inputs.
        explained = changes and question.own_layer is None
        reason = step.reason if explained else f"its layer is there; only {stage.parent} is another"
        return replace(step, action=Action.graft, reason=reason)
    if maker:
        return replace(step, action=Action.graft, reason=f"its layer is made with {maker}")
    step = replace(step, seconds=before.seconds if before else UNKNOWN_SECONDS)
    if key is None and before and not changes:
        return replace(step, action=Action.wait, reason=f"built again unless {stage.parent} comes out as it was")
    return step


def _reason(changes: tuple[Difference, ...], before: Entry | None) -> str:
    if before is None:
        return "it was never built"
    if not changes:
        return "the registry doesn't have it any more"
    return some(map(describe, changes), MOST_NAMED)


def _shown(value: str, same: int) -> str:
    if len(value) <= _LONGEST:
        return value or "none"
    return ("…" if same else "") + value[same : same + _LONGEST] + ("…" if same + _LONGEST < len(value) else "")
