"""Planning a release of which everything is there: generated catalogs, and a registry that knows all their stages."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from time import monotonic

import yaml

from bench.matrix import scratch
from bench.results import Row, machine, versions
from flows.catalog import load
from flows.images.build import Builder
from flows.images.plan import Action, Plan
from flows.images.registry import MANIFEST, Registry, canonical, descriptor
from flows.images.stages import Graph
from flows.locks import freshness
from flows.locks.freshness import Verdict
from flows.plan_release import ReleasePlan, plan_release
from flows.settings import Settings

ROOT = Path(__file__).parents[1]
RELEASE = "2026a"
_CONFIG = canonical({"config": {}})  # of an image in which nothing is


def run() -> list[Row]:
    """Plan 24 and 1,000 profiles, with a mirror that has nothing new; and look at the indexes of the 24."""
    with scratch() as settings:
        small, large = settings.folder("small"), settings.folder("large")
        generate(small, bundles=8, ides=3)
        generate(large, bundles=100, ides=10)
        rows = [_planned(small, 24, 1.0, settings), _looked_at(small, settings), _planned(large, 1000, 5.0, settings)]
    return [replace(row, machine=machine(), versions=versions("buildah")) for row in rows]


def generate(folder: Path, *, bundles: int, ides: int) -> None:
    """A catalog of so many bundles and IDEs, all of them other stages; its release ships each with each."""
    for part in ("base", "snippets"):
        shutil.copytree(ROOT / part, folder / part)
    for number in range(bundles):
        bundle = folder / "bundles" / f"{number}-b{number}"
        shutil.copytree(ROOT / "bundles" / "1-minimal", bundle)
        (bundle / "custom").mkdir(exist_ok=True)
        (bundle / "custom" / "custom.snippet.j2").write_text(f"ENV BUNDLE={number}\n")
    for number in range(ides):
        ide = folder / "ides" / f"{number}-i{number}"
        shutil.copytree(ROOT / "ides" / "1-jupyter", ide)
        snippet = (ide / "jupyter.snippet.j2").read_text()
        (ide / "jupyter.snippet.j2").unlink()
        (ide / f"i{number}.snippet.j2").write_text(f"{snippet}ENV IDE={number}\n")
    choices = [
        {"ide": f"i{ide}", "bundle": f"b{bundle}", "os": "deb12", "python": "py311"}
        for bundle in range(bundles)
        for ide in range(ides)
    ]
    (folder / "releases").mkdir()
    (folder / "releases" / f"{RELEASE}.yaml").write_text(yaml.safe_dump({"release": RELEASE, "profiles": choices}))


def pretend(graph: Graph, builder: Builder, registry: Registry) -> Plan:
    """Put something into the registry under the key of each stage: planning looks no further."""
    registry.put_blob(registry.stages, _CONFIG)
    while True:
        plan = builder.plan(graph)
        missing = [step.key for step in plan.steps.values() if step.key and not step.digest]
        if not missing:
            return plan
        for key in missing:
            config = descriptor("application/vnd.oci.image.config.v1+json", _CONFIG)
            stage = {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config,
                "layers": [],
                "annotations": {"k": key},
            }
            registry.put_manifest(registry.stages, key, canonical(stage), MANIFEST)


def _planned(catalog: Path, profiles: int, goal: float, settings: Settings) -> Row:
    registry = Registry(settings)
    first = plan_release(RELEASE, (), catalog, settings)
    pretend(first.graph, Builder(settings, registry), registry)
    started = monotonic()
    planned = plan_release(RELEASE, (), catalog, settings)
    seconds = monotonic() - started
    done = _nothing_to_do(planned) and len(planned.profiles) == profiles
    name = f"plan of {profiles:,} images, nothing to do"
    return Row(name, "s", f"≤ {goal:g} s", seconds, done and seconds <= goal)


def _nothing_to_do(planned: ReleasePlan) -> bool:
    return planned.plan.count(Action.reuse) == len(planned.graph.stages)


def _looked_at(catalog: Path, settings: Settings) -> Row:
    bundles = load.load_catalog(catalog).bundles.values()
    folders = [folder for bundle in bundles for folder in bundle.pythons.values()]
    for look in freshness.look_at_locks(folders, settings).values():
        freshness.keep(look, settings)
    started = monotonic()
    looks = freshness.look_at_locks(folders, settings).values()
    seconds = monotonic() - started
    same = all(look.finding.verdict is Verdict.same for look in looks)
    return Row("index pages of the 24 images, nothing moved", "s", "≤ 2 s", seconds, same and seconds <= 2)
