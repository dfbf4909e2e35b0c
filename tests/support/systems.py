"""A catalog of two operating systems."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from tests.support.machine import ROOT

RELEASE = "2000b"


def write_catalog(folder: Path) -> Path:
    """Recipes of the repository, twice the same operating system, and a release for both."""
    for part in ("bundles", "ides", "snippets"):
        shutil.copytree(ROOT / part, folder / part)
    for system in ("deb12", "deb13"):
        shutil.copytree(ROOT / "base" / "deb12", folder / "base" / system)
    (folder / "releases").mkdir()
    profiles = [{"ide": "runtime", "bundle": "minimal", "os": os, "python": "py311"} for os in ("deb12", "deb13")]
    (folder / "releases" / f"{RELEASE}.yaml").write_text(yaml.safe_dump({"release": RELEASE, "profiles": profiles}))
    return folder
