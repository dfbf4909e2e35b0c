"""The first commit of a release branch: one release file, an empty first lock, packages whose versions are dates."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
import yaml

from flows import cut_release
from flows.core.errors import RefitError
from flows.lock_requirements import NOTHING, Lock
from flows.locks.python_lockfile import LockChange

OTHER = "release: 2026a\nsupported_until: 2026-12-31\n# kept\nprofiles:\n  - {ide: a}\nreach: {x: any}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases/2026a.yaml").write_text(OTHER)
    (tmp_path / "releases/2026a.lock").write_text("{}")
    (tmp_path / "releases/2025b.yaml").write_text(OTHER.replace("2026a", "2025b"))
    return tmp_path


def release(root: Path) -> dict[str, object]:
    data: dict[str, object] = yaml.safe_load((root / "releases/2026b.yaml").read_text())
    return data


def test_a_release_without_a_file_begins_like_the_newest(root: Path) -> None:
    cut_release.begin(root, "2026b", date(2027, 6, 30))
    assert {file.name for file in (root / "releases").iterdir()} == {"2026b.yaml", "2026b.lock"}
    assert release(root) == {
        "release": "2026b",
        "supported_until": date(2027, 6, 30),
        "profiles": [{"ide": "a"}],
    }
    assert "# kept" in (root / "releases/2026b.yaml").read_text()
    assert json.loads((root / "releases/2026b.lock").read_text()) == {"bundles": {}}
    assert "Pipfile.lock merge=refit-lock" in (root / ".gitattributes").read_text()


def test_a_release_with_a_file_keeps_it(root: Path) -> None:
    (root / "releases/2026b.yaml").write_text(OTHER.replace("2026a", "2026b"))
    cut_release.begin(root, "2026b", None)
    assert (root / "releases/2026b.yaml").read_text() == OTHER.replace("2026a", "2026b")
    cut_release.begin(root, "2026b", date(2029, 1, 1))
    assert release(root)["supported_until"] == date(2029, 1, 1) and release(root)["reach"] == {"x": "any"}


def test_a_catalog_without_any_release_file(tmp_path: Path) -> None:
    with pytest.raises(RefitError, match="no release file to begin with"):
        cut_release.begin(tmp_path, "2026b", None)


def test_what_is_versioned_by_dates_may_move(root: Path) -> None:
    cut_release.begin(root, "2026b", None)
    lock = {
        "_meta": {"hash": {"sha256": "x"}, "sources": []},
        "default": {
            name: {"version": f"=={version}"} for name, version in {"certifi": "2026.1.1", "six": "1.17"}.items()
        },
    }
    folder = root / "bundles/1-one/py311"
    folder.mkdir(parents=True)
    (folder / "Pipfile.lock").write_text(json.dumps(lock))
    cut_release.let_calendars_move(root, "2026b")
    assert release(root)["reach"] == {"certifi": "any"}


def test_the_first_commit_says_what_was_locked() -> None:
    locks = (
        Lock("one", "deb12", "py311", LockChange({"a": ("1", "2")}, {"b": "3"}, {})),
        Lock("two", "deb12", "py311", NOTHING),
    )
    assert cut_release.message("2026b", locks) == (
        "Cut release 2026b\n\none py311: a 1 → 2, +b 3\ntwo py311: nothing moved\n"
    )
