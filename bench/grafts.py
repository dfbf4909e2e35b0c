"""Real images on a patched base: those of `real` that stand on closed stages alone, built by Refit and nobody else.

They are planned and built cold; then their base gets another file of the system, and they are planned and built again.
Counted are the closed stages above a base without any other in between. Stages above a bundle's own instructions or its
system packages, which are made anew on every base, may be carried as well, but nobody has promised that.
"""

from __future__ import annotations

from functools import partial

from bench import real
from bench.matrix import Run, build_with_refit, scratch
from bench.patch import LIMIT, grafted
from bench.results import Row
from flows.images.stages import Graph, Kind
from flows.releases.plan import ReleasePlan


def run() -> list[Row]:
    """Real images on a patched base: Refit's time for each beyond the base's own build, and the grafted stages."""
    with scratch() as settings:
        catalog = real.make_catalog(settings.folder("catalog"))
        stems = closed(real.plan(catalog, settings).graph)
        plans = [partial(one, catalog, settings, stems) for one in (real.plan, real.patch)]
        planned = plans[0]()
        _, ours = build_with_refit(plans, settings)
    return rows(planned, ours)


def closed(graph: Graph) -> tuple[str, ...]:
    """The images that have nothing but closed stages above their base."""
    return tuple(
        stem
        for stem, top in graph.tops.items()
        if all(stage.kind is Kind.closed for stage in graph.ancestry(top) if stage.parent)
    )


def rows(planned: ReleasePlan, ours: Run) -> list[Row]:
    """The rows to write down.

    Args:
        planned: the images.
        ours: how they were planned and made on the patched base, whose own build doesn't count.
    """
    graph, images = planned.graph, len(planned.profiles)
    bases = sum(ours.stages[name].seconds for name, stage in graph.stages.items() if stage.parent is None)
    each, share = 1000 * (ours.seconds - bases) / images, grafted(graph, ours)
    what = f"{real.told(planned)} on a patched base"
    return [
        Row(f"{what}, each", "ms", f"≤ {LIMIT:g} ms beyond the base's own build", each, each <= LIMIT),
        Row(f"{what}: grafted", "% of closed stages", "all", share, share == 100),
    ]
