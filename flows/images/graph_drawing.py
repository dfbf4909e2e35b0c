"""The graph of a release as a picture: a node per stage, coloured by what is done to it."""

from __future__ import annotations

import base64
import logging

from flows.core.errors import RefitError
from flows.core.formatting import in_markdown
from flows.core.programs import command
from flows.images.plan import Action, Plan
from flows.images.stages import Graph

logger = logging.getLogger("refit.build")

# Told apart in greyscale too, and by people who see red and green alike; the word stands in the node as well.
_COLOURS = {Action.reuse: "#e8eef4", Action.graft: "#b7d3a8", Action.wait: "#f6d9a8", Action.build: "#e0823d"}


def dot(graph: Graph, plan: Plan) -> str:
    """The graph in graphviz's language: parents left, children right."""
    nodes = (
        f"  {_quoted(step.stage)} [fillcolor={_quoted(_COLOURS[step.action])}, tooltip={_quoted(step.reason)}, "
        f"label={_quoted(_label(step.stage, step.action, step.seconds))}];"
        for step in plan.steps.values()
    )
    shown = [stage for stage in graph.everything() if stage.name in plan.steps]
    pairs = [(below, stage.name) for stage in shown for below in stage.needs]
    edges = (f"  {_quoted(below)} -> {_quoted(name)};" for below, name in pairs if below in plan.steps)
    head = (
        "digraph release {",
        "  rankdir=LR; ranksep=0.6; nodesep=0.15;",
        '  node [shape=box, style="filled,rounded", color="#7a8794", fontname="Helvetica", fontsize=11];',
        '  edge [color="#7a8794", arrowsize=0.6];',
    )
    return "\n".join((*head, *nodes, *edges, "}")) + "\n"


def svg(graph: Graph, plan: Plan) -> str:
    """The picture as an SVG document.

    Raises:
        RefitError: graphviz isn't installed, or fails.
    """
    return command.run(["dot", "-Tsvg"], stdin=dot(graph, plan)).stdout


def explained(graph: Graph, plan: Plan) -> str:
    """The picture, where there is one, and why what isn't there is made: in Markdown."""
    steps = [step for step in plan.steps.values() if step.action is not Action.reuse]
    rows = [f"| {step.stage} | {step.action} | {in_markdown(step.reason)} |" for step in steps]
    table = ["| stage | action | why |", "|---|---|---|", *rows] if rows else ["All stages are there already."]
    return "\n".join((*_drawn(graph, plan), *table, ""))


def _drawn(graph: Graph, plan: Plan) -> tuple[str, ...]:
    """The picture in Markdown; none where graphviz draws none: nothing is built otherwise for it."""
    try:
        drawn = base64.b64encode(svg(graph, plan).encode()).decode()
    except RefitError as error:
        logger.warning("There is no picture of the stages: %s", error)
        return ()
    return f"![All stages](data:image/svg+xml;base64,{drawn})", ""


def _label(stage: str, action: Action, seconds: float) -> str:
    return f"{stage}\n{action}" + (f", about {seconds:.0f} s" if seconds else "")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
