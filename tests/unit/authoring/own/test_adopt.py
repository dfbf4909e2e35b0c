"""A person's bundle that an operator takes into the catalog."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows.authoring.own.adopt import adopt
from flows.authoring.own.catalog import Wish
from flows.catalog import load
from flows.core.errors import RefitError
from flows.core.programs import command
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


def git(root: Path, *words: str) -> str:
    return command.run(["git", "-C", root, *words]).stdout


@pytest.fixture
def repository(catalog: Path, tmp_path: Path) -> Path:
    """The catalog in a git repository, with a file of somebody else's that is staged."""
    assert catalog
    (tmp_path / "releases" / "2026a.yaml").write_text(RELEASE)
    git(tmp_path, "init", "--quiet")
    for name, value in (("user.name", "Op"), ("user.email", "op@localhost"), ("commit.gpgsign", "false")):
        git(tmp_path, "config", name, value)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    (tmp_path / "other").write_text("of somebody else")
    git(tmp_path, "add", "other")
    return tmp_path


def test_its_files_and_nothing_else_become_a_commit(repository: Path) -> None:
    adopt(WISH, FILES, repository, commit=True)
    changed = git(repository, "show", "--name-only", "--format=%s", "HEAD").split("\n")
    assert changed[0] == "Take the bundle mine of ada into the catalog"
    assert {*filter(None, changed[1:])} == {"releases/2026a.yaml", *(f"bundles/3-mine/{path}" for path in FILES)}
    assert git(repository, "status", "--porcelain") == "A  other\n"


def test_where_git_takes_no_commit_the_catalog_is_as_it_was(repository: Path, tmp_path: Path) -> None:
    hook = repository / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\necho 'no bundles on Thursdays' >&2; exit 1\n")
    hook.chmod(0o755)
    before, status = tree(repository / "bundles"), git(repository, "status", "--porcelain")
    with pytest.raises(RefitError) as refused:
        adopt(WISH, FILES, repository, commit=True)
    assert "no bundles on Thursdays" in str(refused.value)
    assert (tree(repository / "bundles"), git(repository, "status", "--porcelain")) == (before, status)
    hook.unlink()

    (repository / "releases/2026a.yaml").write_text(f"{RELEASE}# not committed\n")
    with pytest.raises(RefitError, match="aren't committed"):
        adopt(WISH, FILES, repository, commit=True)
    git(repository, "checkout", "--", "releases/2026a.yaml")
    (repository / ".git").rename(tmp_path / "elsewhere")
    with pytest.raises(RefitError, match="takes no commit"):
        adopt(WISH, FILES, repository, commit=True)
    assert tree(repository / "bundles") == before
