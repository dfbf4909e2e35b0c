"""Nights of a small catalog with its own package index and Prefect server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

from flows import services
from flows.core.settings import Settings
from flows.core.settings.environment import variables
from tests.support.machine import ROOT
from tests.support.package_index import make_wheel, write_page
from tests.support.prefect_api import prefect_client
from tests.support.waiting import PATIENCE, wait_until

REFIT = Path(sys.executable).parent / "refit"
RELEASE = "2001a"  # nobody else's
# Two bundles: `two` is for whoever needs an `ant` that is not too old.
NEEDS = {"one": ["elk"], "two": ["bee", "cow"]}
AUTOMATION = {
    "name": "Plan the migration to new images",
    "trigger": {
        "type": "event",
        "posture": "Reactive",
        "expect": ["refit.profile.published"],
        "match": {"prefect.resource.id": "refit.profile.*", "refit.release": RELEASE},
        "threshold": 1,
    },
}


@dataclass(frozen=True)
class Scene:
    """Somebody with a catalog, a package index, and an address for bad news."""

    settings: Settings
    index: Path
    told: list[dict[str, Any]]

    @property
    def catalog(self) -> Path:
        return self.settings.catalog

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **variables(self.settings)}
        argv = [REFIT, *(words or ["nightly"]), "--json"]
        return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def night(self, exit_code: int = 0) -> Any:
        return ended(self.start(), exit_code)

    def with_catalog(self, folder: Path, release: str) -> Scene:
        """The same with a copy of the catalog, to be changed, and a release (and so aliases) of its own."""
        shutil.copytree(self.catalog, folder, ignore=shutil.ignore_patterns("2000z.yaml"))
        old = folder / "releases" / f"{RELEASE}.yaml"
        (folder / "releases" / f"{release}.yaml").write_text(old.read_text().replace(RELEASE, release))
        old.unlink()
        chosen = Settings(**{**dict(self.settings), "catalog": folder})
        return replace(self, settings=chosen)

    def custom(self, bundle: str, text: str) -> None:
        folder = next(self.catalog.glob(f"bundles/*-{bundle}")) / "custom"
        folder.mkdir()
        (folder / "custom.snippet.j2").write_text(text)

    def api(self) -> httpx.Client:
        return prefect_client(self.settings)


def ended(process: subprocess.Popen[str], exit_code: int = 0) -> Any:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == exit_code, out + err
    return json.loads(out)


def report(night: Any) -> Any:
    [release] = night["releases"]
    assert not release["problem"]
    return release["report"]


def new(night: Any) -> set[str]:
    return {image["profile"] for image in report(night)["images"] if image["new"]}


def made(night: Any) -> list[str]:
    return [stage["stage"] for stage in report(night)["stages"] if not stage["reused"]]


def profile(bundle: str) -> str:
    return f"runtime-{bundle}-deb12-py311"


def write_catalog(folder: Path) -> None:
    for part in ("base", "snippets", "ides/2-runtime"):
        shutil.copytree(ROOT / part, folder / part)
    for number, (name, packages) in enumerate(NEEDS.items()):
        bundle = folder / "bundles" / f"{number}-{name}"
        (bundle / "py311").mkdir(parents=True)
        (bundle / "display.txt").write_text(f"{name}\n")
        asked = "".join(f'{package} = "*"\n' for package in packages)
        source = '[[source]]\nname = "pypi"\nurl = "https://pypi.org/simple"\nverify_ssl = true\n'
        pipfile = f'{source}\n[packages]\n{asked}\n[requires]\npython_version = "3.11"\n'
        (bundle / "py311" / "Pipfile").write_text(pipfile)
    choices = [{"ide": "runtime", "bundle": name, "os": "deb12", "python": "py311"} for name in NEEDS]
    (folder / "releases").mkdir()
    text = yaml.safe_dump({"release": RELEASE, "nightly": "0 2 * * *", "profiles": choices})
    (folder / "releases" / f"{RELEASE}.yaml").write_text(text)
    (folder / "releases" / "2000z.yaml").write_text(
        yaml.safe_dump({"release": "2000z", "supported_until": "2020-01-01", "profiles": choices})
    )


def serve(scene: Scene) -> str:
    environment = {**os.environ, **variables(scene.settings)}
    wait_until(lambda: all(state.answering for state in services.status(scene.settings)))
    done = subprocess.run([REFIT, "serve"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def news(scene: Scene, package: str, version: str, needs: list[str] | None = None) -> Iterator[None]:
    """A new version on the index, and afterwards none."""
    wheel = make_wheel(scene.index / package, package, version, needs or [])
    write_page(wheel.parent)
    try:
        yield
    finally:
        wheel.unlink()
        write_page(wheel.parent)


def runs(prefect: httpx.Client, flow: str) -> list[dict[str, Any]]:
    """All runs of a flow that have begun, newest first."""
    asked = {"sort": "START_TIME_DESC", "flows": {"name": {"any_": [flow]}}}
    answer: list[dict[str, Any]] = prefect.post("/flow_runs/filter", json=asked).raise_for_status().json()
    return [run for run in answer if run["start_time"]]
