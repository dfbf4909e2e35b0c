"""Planning a release of which everything is there: generated catalogs, and a registry that knows all their stages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from time import monotonic

import yaml
from sqlalchemy.orm import Session

from bench.matrix import scratch
from bench.results import Row
from flows import lock_requirements
from flows.catalog import load
from flows.core.database import now, open_database
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.images import stages
from flows.images.build import Builder
from flows.images.builder.stage_builder import StageBuilder
from flows.images.ledger import StageRow
from flows.images.manifests import MANIFEST, canonical, descriptor, digest_of
from flows.images.plan import Action, Plan
from flows.images.registry import Registry
from flows.images.stages import Graph
from flows.locks import freshness
from flows.locks.freshness import Verdict
from flows.releases.plan import ReleasePlan, chosen, plan_release, read_catalog

ROOT = Path(__file__).parents[1]
RELEASE = "2026a"
_CONFIG = canonical({"config": {}})  # of an image in which nothing is


def run() -> list[Row]:
    """Planning 24 and 1,000 profiles of which everything is there, and looking at the index pages of the 24."""
    with scratch() as settings:
        small, large = settings.folder("small"), settings.folder("large")
        generate(small, bundles=8, ides=3)
        generate(large, bundles=100, ides=10)
        return [
            _planned(small, 24, 1.0, settings, thorough=True),  # as `refit plan` and each build do
            _looked_at(small, settings),
            _planned(large, 1000, 5.0, settings),
        ]


def generate(folder: Path, *, bundles: int, ides: int) -> None:
    """The catalog with so many bundles and IDEs more, all of them other stages; its release ships each with each."""
    for part in ("base", "bundles", "ides", "snippets"):  # recipes may need one another
        shutil.copytree(ROOT / part, folder / part)
    for number in range(bundles):
        bundle = folder / "bundles" / f"{100 + number}-b{number}"
        shutil.copytree(ROOT / "bundles" / "1-minimal", bundle)
        (bundle / "custom").mkdir(exist_ok=True)
        (bundle / "custom" / "custom.snippet.j2").write_text(f"ENV BUNDLE={number}\n")
    for number in range(ides):
        ide = folder / "ides" / f"{100 + number}-i{number}"
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


def pretend(graph: Graph, settings: Settings) -> Plan:
    """Let registry and ledger have something under the key of each stage: planning looks no further."""
    registry, maker = Registry(settings), StageBuilder(settings, Registry(settings))
    registry.put_blob(registry.stages, _CONFIG)
    digests: dict[str, str] = {}
    made: dict[str, bytes] = {}
    rows: dict[str, StageRow] = {}
    for stage in graph.stages.values():
        inputs = stages.inputs(stage, digests[stage.parent] if stage.parent else None, maker.tools(stage))
        key = stages.key_of(inputs)
        made[key] = _manifest(key)
        digests[stage.name] = digest_of(made[key])
        said = {"inputs": json.dumps(inputs, sort_keys=True), "seconds": 9.0, "built": now()}
        rows[key] = StageRow(key=key, name=stage.name, digest=digests[stage.name], **said)
    at_once(lambda key: registry.put_manifest(registry.stages, key, made[key], MANIFEST), made)
    with Session(open_database(settings.database)) as session, session.begin():
        for row in rows.values():
            session.merge(row)
    return Builder(settings, registry).plan(graph)


def _manifest(key: str) -> bytes:
    config = descriptor("application/vnd.oci.image.config.v1+json", _CONFIG)
    named = {"mediaType": MANIFEST, "config": config, "layers": [], "annotations": {"k": key}}
    return canonical({"schemaVersion": 2, **named})


def planned_release(catalog: Path, settings: Settings, *, thorough: bool = False) -> ReleasePlan:
    """The plan of the benchmark's release, with its catalog read anew."""
    recipes = read_catalog(catalog)
    profiles = chosen(recipes, RELEASE, ())
    return plan_release(RELEASE, profiles, recipes, settings, Registry(settings), thorough=thorough)


def _planned(catalog: Path, profiles: int, goal: float, settings: Settings, *, thorough: bool = False) -> Row:
    pretend(planned_release(catalog, settings).graph, settings)
    started = monotonic()
    planned = planned_release(catalog, settings, thorough=thorough)
    seconds = monotonic() - started
    done = _nothing_to_do(planned) and len(planned.profiles) == profiles
    name = f"plan of {profiles:,} images, nothing to do"
    return Row(name, "s", f"≤ {goal:g} s", seconds, done and seconds <= goal)


def _nothing_to_do(planned: ReleasePlan) -> bool:
    return planned.plan.count(Action.reuse) == len(planned.graph.stages)


def remember_locks(catalog: Path, settings: Settings) -> dict[Path, str]:
    """Let it be known that the locks of the release are those of this index; returns their folders and terms."""
    targets = lock_requirements.targets([load.load_catalog(catalog).releases[RELEASE]])
    terms = {target.folder: target.terms for target in targets}
    for look in freshness.look_at_locks(terms, settings).values():
        freshness.keep(look, settings)
    return terms


def _looked_at(catalog: Path, settings: Settings) -> Row:
    terms = remember_locks(catalog, settings)
    started = monotonic()
    looks = freshness.look_at_locks(terms, settings).values()
    seconds = monotonic() - started
    same = all(look.finding.verdict is Verdict.same for look in looks)
    return Row("index pages of the 24 images, nothing moved", "s", "≤ 2 s", seconds, same and seconds <= 2)
