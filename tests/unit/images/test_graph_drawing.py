"""The picture of a release: every stage is in it, and nothing in a name or a reason breaks it."""

import stat
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flows.images import graph_drawing, stages
from flows.images.plan import Action, Plan, Step
from flows.images.stages import Kind, Stage

BASE = Stage("base", Kind.bootstrap, None, "")
CHILD = Stage('a "quoted" child', Kind.closed, "base", 'CMD ["x"]')
GRAPH = stages.join({"child": [BASE, CHILD]})
PLAN = Plan(
    {
        "base": Step("base", Action.build, "instructions text: a | b\\n → c", seconds=75),
        CHILD.name: Step(CHILD.name, Action.graft, "its layer is there"),
    }
)
SVG = "{http://www.w3.org/2000/svg}"


def test_every_stage_and_what_is_done_to_it_is_in_the_picture() -> None:
    drawn = ElementTree.fromstring(graph_drawing.svg(GRAPH, PLAN))
    words = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"base", "build, about 75 s", CHILD.name, "graft"} <= words
    assert len([node for node in drawn.iter(f"{SVG}g") if node.get("class") == "edge"]) == 1


def test_wheels_that_are_built_stand_before_what_needs_them() -> None:
    wheels = Stage("wheels", Kind.wheels, "base", "RUN pip wheel")
    graph = stages.join({"child": [BASE, replace(CHILD, wheels=wheels)]})
    plan = Plan({**PLAN.steps, "wheels": Step("wheels", Action.build, "it was never built")})
    assert '"wheels" -> ' in graph_drawing.dot(graph, plan) and '"base" -> "wheels"' in graph_drawing.dot(graph, plan)
    assert "wheels" not in graph_drawing.dot(graph, PLAN)


def test_below_it_stands_why() -> None:
    text = graph_drawing.explained(GRAPH, PLAN)
    assert text.startswith("![All stages](data:image/svg+xml;base64,")
    assert r"| base | build | instructions text: a \| b\\n → c |" in text
    assert f"| {CHILD.name} | graft | its layer is there |" in text


def test_where_nothing_is_made_it_says_so() -> None:
    nothing = Plan({name: Step(name, Action.reuse) for name in GRAPH.stages})
    assert graph_drawing.explained(GRAPH, nothing).endswith("\n\nAll stages are there already.\n")


@pytest.mark.parametrize("fails", [True, False], ids=["dot fails", "no dot"])
def test_without_a_picture_it_says_why_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    if fails:
        (tmp_path / "dot").write_text("#!/bin/sh\necho no fonts >&2\nexit 3\n")
        (tmp_path / "dot").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = graph_drawing.explained(GRAPH, PLAN)
    assert text.startswith("| stage | action | why |") and f"| {CHILD.name} | graft |" in text
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("There is no picture") and ("no fonts" if fails else "dot") in warning
