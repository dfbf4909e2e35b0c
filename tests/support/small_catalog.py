"""A catalog of two systems and two bundles, of the parts of the real one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.catalog import load
from flows.catalog.model import Catalog
from tests.support.machine import ROOT

PIPFILE = """\
[[source]]
name = "pypi"
url = "https://pypi.org/simple"

[packages]
{jupyter}
[requires]
python_version = "{version}"
"""
FILE = "release: 2026a\nprofiles:\n  - {ide: runtime, bundle: old, os: deb12, python: py311}\n"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Two systems with a Python each; a bundle for both, and one for the older that has nothing for Jupyter."""
    for part in ("base/deb12", "base/deb13", "ides/1-jupyter", "ides/2-runtime", "snippets"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for folder, jupyter in (("1-both/py311", True), ("1-both/py313", True), ("2-old/py311", False)):
        place = tmp_path / "bundles" / folder
        place.mkdir(parents=True)
        (place.parent / "display.txt").write_text(f"The bundle {place.parent.name}\n")
        asked = "[jupyter]\njupyterlab = '*'\n" if jupyter else ""
        (place / "Pipfile").write_text(PIPFILE.format(jupyter=asked, version=f"3.{place.name[3:]}"))
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases" / "2026a.yaml").write_text(FILE)
    return load.load_catalog(tmp_path)
