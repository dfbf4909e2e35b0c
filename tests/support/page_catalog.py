"""A catalog with one bundle and an IDE that is a page, locked and built in a moment."""

from __future__ import annotations

import shutil
from pathlib import Path

from flows.catalog import load, skeletons
from tests.support.machine import ROOT

PIPFILE = """\
[[source]]
name = "pypi"
url = "https://pypi.org/simple"
verify_ssl = true

[packages]
six = "~=1.17"

[requires]
python_version = "3.11"
"""
RELEASE = "release: 2026a\nprofiles:\n  - {ide: page, bundle: small, os: deb12, python: py311}\n"


def write_catalog(root: Path) -> Path:
    for part in ("base/deb12", "ides/2-runtime", "snippets"):
        shutil.copytree(ROOT / part, root / part)
    for name in ("bundles", "releases"):
        (root / name).mkdir()
    for path, text in skeletons.skeleton("ide", "page", load.load_catalog(root)).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    bundle = root / "bundles" / "1-small"
    files = {bundle / "display.txt": "Small\n", bundle / "py311" / "Pipfile": PIPFILE}
    for file, text in {**files, root / "releases" / "2026a.yaml": RELEASE}.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
