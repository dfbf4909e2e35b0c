"""A person's bundle that an operator takes into the catalog."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows.authoring.own.adopt import adopt
from flows.authoring.own.catalog import Wish
from flows.catalog import load
from flows.core.errors import RefitError
from tests.support.small_catalog import catalog

__all__ = ["catalog"]

WISH = Wish("mine", "ada", "runtime", "deb12", "2026a")
FILES = {
    "display.txt": b"Ada's own\n",
    "bundle.yaml": b"extends: both\n",
    "py311/Pipfile": b'[packages]\niniconfig = "~=2.0"\n\n[requires]\npython_version = "3.11"\n',
}
RELEASE = "release: 2026a\nprofiles:\n  - {ide: runtime, bundle: old, os: deb12, python: py311}\n"


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.usefixtures("catalog")
def test_it_is_a_bundle_of_the_catalog_and_a_profile_of_its_release(tmp_path: Path) -> None:
    (tmp_path / "releases" / "2026a.yaml").write_text(RELEASE)
    assert adopt(WISH, FILES, tmp_path).name == "3-mine"
    profile = load.profile(load.load_catalog(tmp_path), "2026a", "runtime-mine-deb12-py311")
    assert profile.bundle.owner == "" and len(profile.bundle.lineage) == 2


@pytest.mark.usefixtures("catalog")
@pytest.mark.parametrize(
    ("wish", "changed"),
    [
        (replace(WISH, name="both"), {}),
        (replace(WISH, ide="nowhere"), {}),
        (WISH, {"bundle.yaml": b"extends: nowhere\n"}),
        (WISH, {"builder/sources.txt": b"x\n"}),
    ],
)
def test_a_mistake_leaves_the_catalog_as_it_was(wish: Wish, changed: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "releases" / "2026a.yaml").write_text(RELEASE)
    before = tree(tmp_path)
    with pytest.raises(RefitError):
        adopt(wish, {**FILES, **changed}, tmp_path)
    assert tree(tmp_path) == before
