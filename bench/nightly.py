"""A night in which nothing has changed: `refit nightly` with 24 images, the Prefect server up, and real indexes.

The images are made up (their stages are empty, nothing was checked, all are signed): a night without news asks the same
of them, and of the mirror and the package index.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import httpx

from bench.matrix import scratch
from bench.plan import RELEASE, generate, planned_release, pretend, remember_locks
from bench.results import Row
from flows import services
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings.environment import variables
from flows.images.build import Built
from flows.images.manifests import MANIFEST, canonical
from flows.images.registry import Registry
from flows.publishing import evidence, provenance
from flows.publishing.publish import push_labelled
from flows.publishing.signatures import Publications
from flows.releases.plan import ReleasePlan
from flows.services import csrf
from tests.support.live_folders import modified, paths_below
from tests.support.waiting import free_port

IMAGES = 24
LIMIT = 5.0


def run() -> list[Row]:
    """A night without news for 24 images, Prefect and the looks at the indexes included."""
    with scratch() as alone, _served(alone) as settings:
        generate(settings.catalog, bundles=8, ides=3)
        _publish_all(planned_release(settings.catalog, settings), settings)
        remember_locks(settings.catalog, settings)
        _night(settings)
        before, started = _stored(settings), monotonic()
        night = _night(settings)
        command = monotonic() - started
        quiet, flow = _nothing_done(night) and _stored(settings) == before, _flow_seconds(settings)
    row = Row(f"no-op nightly, {IMAGES} images: the flow", "s", f"≤ {LIMIT:g} s", flow, quiet and flow <= LIMIT)
    whole = f"no-op nightly, {IMAGES} images: the whole command"
    return [row, replace(row, name=whole, goal="no registry write", ours=command, reached=quiet)]


@contextmanager
def _served(settings: Settings) -> Iterator[Settings]:
    """The same settings with a catalog of their own, and a Prefect server that is up."""
    chosen = {"registry": settings.registry_host, "prefect_port": free_port(), "catalog": settings.home / "catalog"}
    served = Settings(**{**dict(settings), **chosen})
    services.up(served)
    try:
        yield served
    finally:
        services.down(served)


def _publish_all(planned: ReleasePlan, settings: Settings) -> None:
    """Images of all profiles as if they had been built, checked, signed and tagged yesterday."""
    registry, database = Registry(settings), open_database(settings.database)
    publications = Publications(settings, database, registry)
    plan = pretend(planned.graph, settings)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    for profile in planned.profiles:
        top = plan.steps[planned.graph.tops[profile.stem]]
        image = push_labelled(registry, profile, Built(top.stage, top.key or "", top.layer, top.digest or ""))
        asked = provenance.asked(profile.stem, RELEASE)
        document = canonical(provenance.statement(registry.repository, image.digest, asked))
        evidence.attach(registry, image, {evidence.PROVENANCE: document}, database)
        publications.sign(image, document, profile.stem, RELEASE)
        alias = f"{profile.stem}_{RELEASE}"
        for tag in (f"{alias}_{yesterday:%Y%m%d}", alias):
            registry.put_manifest(registry.repository, tag, image.content, MANIFEST)


def _night(settings: Settings) -> Any:
    """The JSON of `refit nightly`."""
    argv = [str(Path(sys.executable).with_name("refit")), "nightly", "--json"]
    # The benchmarks' own Prefect is another one.
    others = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**others, **variables(settings)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(done.stdout)


def _flow_seconds(settings: Settings) -> float:
    """How long the newest flow run took, as the Prefect server has it."""
    asked = {"sort": "START_TIME_DESC", "limit": 1}
    login = services.prefect_login(settings)
    with httpx.Client(base_url=settings.prefect_api, auth=login, timeout=60, trust_env=False) as server:
        answer = server.post("/flow_runs/filter", json=asked, headers=csrf.headers(server))
    [run] = answer.raise_for_status().json()
    return float(run["total_run_time"])


def _nothing_done(night: Any) -> bool:
    [release] = night["releases"]
    images, stages = release["report"]["images"], release["report"]["stages"]
    kept = len(images) == IMAGES and not any(image["new"] for image in images)
    return kept and all(stage["reused"] for stage in stages) and not night["locks"]


def _stored(settings: Settings) -> dict[Path, int]:
    """All that the registry keeps, and since when."""
    return modified(path for path in paths_below(settings.home.parent / "registry") if path.name != "log")
