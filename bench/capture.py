"""From `refit session capture` until what was captured has started: lock, build, checks, and a copy of the session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from bench.lab import ROOT, lab
from bench.results import Row
from flows import services
from flows.core.settings import Settings
from flows.core.settings.environment import variables
from tests.support.waiting import free_port

NAME = "ada"
PARTS = ("base", "bundles", "ides", "releases", "snippets")
PACKAGES = {"humanize": "4.11.0", "iniconfig": "2.1.0", "tabulate": "0.9.0"}
ENVIRONMENT = "work/.venv"
# As pip leaves what somebody asked for: sessions of this machine may reach no index.
INSTALLED = f"""
[ -d {ENVIRONMENT} ] || python3 -m venv --without-pip {ENVIRONMENT}
made=$(echo {ENVIRONMENT}/lib/python3*/site-packages)/$1-$2.dist-info
mkdir $made && printf 'Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n' "$1" "$2" >$made/METADATA
touch $made/REQUESTED
"""


def run() -> list[Row]:
    """Packages in an environment of a session's home become a bundle, which starts on a copy of that session."""
    with lab(prefect_port=free_port()) as machine:
        settings = _with_catalog(machine.settings)
        machine.create(NAME)
        for package in PACKAGES.items():
            machine.sessions.execute(NAME, ["sh", "-euc", INSTALLED, "sh", *package])
        services.up(settings, only=("prefect", "worker"))
        looked, first, second = (_seconds(settings, *more) for more in (("mine", "--dry-run"), ("mine",), ("other",)))
    what = f"capture of {len(PACKAGES)} packages of a JupyterLab session"
    return [
        Row(f"{what}: what would be captured", "s", "seconds", looked, reached=True),
        Row(f"{what}, until it has started on a copy of it: the first time", "s", "minutes", first, reached=True),
        Row(f"{what}, until it has started on a copy of it: as another bundle", "s", "minutes", second, reached=True),
    ]


def _with_catalog(settings: Settings) -> Settings:
    """The same settings with a copy of the catalog, into which bundles are written."""
    catalog = settings.home / "catalog"
    for part in PARTS:
        shutil.copytree(ROOT / part, catalog / part)
    chosen = {"registry": settings.registry_host, "catalog": catalog}  # a registry that no service of Refit is
    return Settings(**{**dict(settings), **chosen})


def _seconds(settings: Settings, bundle: str, *more: str) -> float:
    """Seconds of a capture, whose bundle has to be proven."""
    asked = ["session", "capture", NAME, "--as", bundle, "--environment", ENVIRONMENT, "--json", *more]
    others = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    argv, environment = [str(Path(sys.executable).with_name("refit")), *asked], {**others, **variables(settings)}
    started = monotonic()
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    taken = monotonic() - started
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    told: Any = json.loads(done.stdout)
    if {*told["packages"]} != {*PACKAGES} or (not more and told["proof"]["lost"]):
        raise SystemExit(f"not all was captured: {done.stdout}")
    return taken
