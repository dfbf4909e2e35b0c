"""A security patch of the base under images that have nothing but closed layers above it.

Eight bundles and three IDEs on each: layers of made-up files on the real base of the catalog. Of the base, files that
no other layer has are changed, as by an update.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

from bench.matrix import LAYERS, Run, build_with_refit, plan, scratch
from bench.results import Row
from flows.catalog import load
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Graph, Kind, Stage
from flows.locks import freshness

ROOT = Path(__file__).parents[1]
BUNDLES, IDES = 8, 3
IMAGES = BUNDLES * IDES
FILES, SIZE = 300, 30_000
PATCH = "USER 0\nRUN echo patched | tee -a /usr/share/common-licenses/GPL-3 /usr/lib/os-release\n"
LIMIT = 100.0  # milliseconds


def run() -> list[Row]:
    """A security patch of the base under 24 images: grafted by Refit, rebuilt by `buildah build --layers`."""
    with scratch() as settings, scratch() as alone:
        before = graph(_base(settings))
        after = graph(replace(before.stages["base"], text=f"{before.stages['base'].text}{PATCH}"))
        _, ours = build_with_refit([lambda: plan(before, settings), lambda: plan(after, settings)], settings)
        peer = _rebuild(after, ours.stages["base"].digest, settings, alone)
    return rows(after, ours, {LAYERS: peer})


def rows(graph: Graph, ours: Run, peers: Mapping[str, float]) -> list[Row]:
    """The rows to write down.

    Args:
        graph: the images on the patched base.
        ours: how Refit made them, and the base.
        peers: how many seconds others took, to whom the base was given.
    """
    each = (ours.seconds - ours.stages["base"].seconds) * 1000 / IMAGES
    others = {name: seconds * 1000 / IMAGES for name, seconds in peers.items()}
    goal, share = f"≤ {LIMIT:g} ms beyond the base's own build", grafted(graph, ours)
    name = f"{IMAGES} images after a patch of their base"
    return [
        Row(f"{name}, each", "ms", goal, each, each <= LIMIT, others),
        Row(f"{name}: grafted", "% of closed stages", "all", share, share == 100),
    ]


def grafted(graph: Graph, run: Run) -> float:
    """How many percent of the closed stages were made without a build: grafted, or found as one of another name."""
    closed = [run.stages[stage.name] for stage in graph.stages.values() if stage.kind is Kind.closed]
    return 100 * sum(stage.how != "built" for stage in closed) / len(closed)


def _base(settings: Settings) -> Stage:
    catalog = load.load_catalog(ROOT)
    foundation = Assembler(catalog, partial(freshness.resolve, settings=settings)).foundation
    return replace(foundation(catalog.bases["deb12"], "py311"), name="base")


def graph(base: Stage) -> Graph:
    """Images of closed layers on a base."""
    made = {base.name: base}
    for number in range(BUNDLES):
        bundle = _layer(f"bundle{number}", base.name, FILES, "/opt/bundle/")
        ides = [_layer(f"image{number}-{ide}", bundle.name, IDES, "/opt/ide/") for ide in range(IDES)]
        made |= {stage.name: stage for stage in (bundle, *ides)}
    return Graph(made, {})


def _layer(name: str, parent: str, files: int, target: str) -> Stage:
    content = random.Random(name)
    made = {f"files/{number}": content.randbytes(SIZE) for number in range(files)}
    return Stage(name, Kind.closed, parent, f"COPY files/ {target}\nENV NAME={name}\n", made)


def _rebuild(graph: Graph, base: str, settings: Settings, alone: Settings) -> float:
    """Build each image on the new base with buildah, one after the other, each layer once; returns the seconds."""
    registry = Registry(settings)
    buildah = tools.buildah(alone)
    source = f"docker://{registry.host}/{registry.stages}@{base}"
    command.run([*buildah, "pull", "--quiet", "--tls-verify=false", source], root=True)
    origin = source.removeprefix("docker://")
    builds = list(_contexts(graph, origin, alone.folder("contexts")))
    started = monotonic()
    for context in builds:
        words = ["build", "--layers", "--isolation", tools.isolation(alone), "--pull-never", "--tag", context.name]
        command.run([*buildah, *words, str(context)], root=True)
    return monotonic() - started


def _contexts(graph: Graph, base: str, folder: Path) -> Iterator[Path]:
    """For each image a folder with a Containerfile and its files."""
    for name in graph.stages:
        if not name.startswith("image"):
            continue
        context = folder / name
        _, *above = graph.ancestry(name)
        text = [f"FROM {base}"]
        for stage in above:
            for path, content in stage.files.items():
                (context / stage.name / path).parent.mkdir(parents=True, exist_ok=True)
                (context / stage.name / path).write_bytes(content)
            text.append(stage.text.replace("COPY files/", f"COPY {stage.name}/files/"))
        (context / "Containerfile").write_text("\n".join(text))
        yield context
