"""Release branches, by the real git: worktrees, commits that list what changed, and what the remote gets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from flows.catalog.model import Catalog, Release
from flows.cli.tables import releases
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.releases import branches
from tests.support.machine import ROOT

pytestmark = pytest.mark.slow

Git = Callable[..., str]


@pytest.fixture
def git() -> Git:
    def run(folder: Path, *words: str) -> str:
        return command.run(
            ["git", "-C", folder, "-c", "user.name=Ada", "-c", "user.email=ada@localhost", *words]
        ).stdout.strip()

    return run


@pytest.fixture
def catalog(tmp_path: Path, git: Git) -> Path:
    """A catalog in a folder of a repository, with a bare repository as its remote."""
    folder = tmp_path / "repository" / "catalog"
    for kind in ("bundles", "releases"):
        shutil.copytree(ROOT / kind, folder / kind)
    git(tmp_path, "init", "--quiet", "--bare", "remote.git")
    git(folder, "init", "--quiet", "--initial-branch=main", str(folder.parent))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=Begin")
    git(folder, "remote", "add", "origin", str(tmp_path / "remote.git"))
    return folder


def test_a_folder_outside_of_any_repository_has_no_branches(tmp_path: Path) -> None:
    assert not branches.is_repository(tmp_path) and branches.branches(tmp_path) == ()


def test_a_release_branch_from_its_cut_to_the_remote(catalog: Path, tmp_path: Path, git: Git) -> None:
    there = branches.create(catalog, "2026a", "HEAD", tmp_path / "tree")
    assert there == tmp_path / "tree" / "catalog"
    (branch,) = branches.branches(catalog)
    assert (branch.release, branch.problem, branch.is_supported(date(2100, 1, 1))) == ("2026a", "", True)

    branches.regenerate_in_merges(there)
    branches.regenerate_in_merges(there)
    assert branches.commit(there, "Cut release 2026a\n\nminimal py311: +six 1.17.0")
    assert not branches.commit(there, "Nothing")
    assert (
        git(catalog, "log", "-1", "--format=%an: %B", "2026a")
        == "Refit: Cut release 2026a\n\nminimal py311: +six 1.17.0"
    )
    assert git(catalog, "log", "-1", "--format=%s") == "Begin"

    assert branches.ahead(there, "2026a")
    branches.push(there, "2026a")
    assert not branches.ahead(there, "2026a")
    assert git(tmp_path / "remote.git", "rev-parse", "2026a") == git(catalog, "rev-parse", "2026a")


def test_a_worktree_follows_the_remote_and_gives_up_what_a_killed_run_left(
    catalog: Path, tmp_path: Path, git: Git
) -> None:
    git(catalog, "push", "--quiet", "origin", "main:2026a")
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", "--branch=2026a", "remote.git", str(other))
    git(catalog, "fetch", "--quiet")
    there = branches.check_out(catalog, "2026a", tmp_path / "tree")  # so far known at the remote alone

    (other / "catalog" / "releases" / "2026a.yaml").write_text("release: 2026a\n")
    git(other, "commit", "--quiet", "--all", "--message=Ship nothing")
    git(other, "push", "--quiet", "origin", "HEAD")
    (there / "bundles" / "half").write_text("x")
    (there / "releases" / "2026a.yaml").write_text("half")
    assert branches.check_out(catalog, "2026a", tmp_path / "tree") == there
    assert (there / "releases" / "2026a.yaml").read_text() == "release: 2026a\n"
    assert not (there / "bundles" / "half").exists()
    (branch,) = branches.branches(catalog)
    assert branch.file is None and "2026a:releases/2026a.yaml" in branch.problem and "profiles" in branch.problem


def test_commits_that_were_not_pushed_stay_and_branches_that_went_apart_are_told(
    catalog: Path, tmp_path: Path, git: Git
) -> None:
    there = branches.create(catalog, "2026a", "main", tmp_path / "tree")
    branches.push(there, "2026a")
    (there / "bundles" / "new").write_text("x")
    branches.commit(there, "New")
    branches.check_out(catalog, "2026a", tmp_path / "tree")
    assert (there / "bundles" / "new").exists() and branches.ahead(there, "2026a")

    git(tmp_path, "clone", "--quiet", "--branch=2026a", "remote.git", "other")
    git(tmp_path / "other", "commit", "--quiet", "--allow-empty", "--message=Another")
    git(tmp_path / "other", "push", "--quiet", "origin", "HEAD")
    with pytest.raises(RefitError, match="gone different ways"):
        branches.check_out(catalog, "2026a", tmp_path / "tree")


def test_a_branch_that_a_person_works_on_is_left_to_them(catalog: Path, tmp_path: Path, git: Git) -> None:
    git(catalog, "switch", "--quiet", "--create", "2026a")
    with pytest.raises(
        RefitError, match=r"can't be checked out.*\n.*already checked out.*\n(.*\n)*.*git switch --detach"
    ):
        branches.check_out(catalog, "2026a", tmp_path / "tree")


def test_without_a_remote_there_is_nothing_to_push_and_a_remote_that_is_away_stops_nothing(
    catalog: Path, tmp_path: Path, git: Git
) -> None:
    there = branches.create(catalog, "2026a", "main", tmp_path / "tree")
    (tmp_path / "remote.git").rename(tmp_path / "away")
    branches.check_out(catalog, "2026a", tmp_path / "tree")
    git(catalog, "remote", "remove", "origin")
    assert not branches.ahead(there, "2026a")


@pytest.mark.parametrize("start", ["nowhere", "--all", ""])
def test_a_release_begins_with_a_commit_that_is_there(catalog: Path, tmp_path: Path, start: str) -> None:
    with pytest.raises(RefitError, match="no commit"):
        branches.create(catalog, "2026a", start, tmp_path / "tree")


def test_a_branch_is_made_once_and_can_be_taken_back(catalog: Path, tmp_path: Path) -> None:
    branches.create(catalog, "2026a", "HEAD", tmp_path / "tree")
    with pytest.raises(RefitError, match="already"):
        branches.create(catalog, "2026a", "HEAD", tmp_path / "other")
    branches.drop(catalog, "2026a", tmp_path / "tree")
    assert branches.branches(catalog) == () and not (tmp_path / "tree").exists()


def test_locks_never_stop_a_merge(catalog: Path, tmp_path: Path, git: Git) -> None:
    branches.regenerate_in_merges(catalog)
    lock = "bundles/1-minimal/py311/Pipfile.lock"
    git(catalog, "add", ".")
    git(catalog, "commit", "--quiet", "--message=Attributes")
    there = branches.create(catalog, "2026a", "HEAD", tmp_path / "tree")
    (there / lock).write_text("ours")
    branches.commit(there, "Ours")
    (catalog / lock).write_text("theirs")
    git(catalog, "commit", "--quiet", "--all", "--message=Theirs")
    git(there, "merge", "--quiet", "main")
    assert (there / lock).read_text() == "ours"


def test_all_releases_are_listed_and_those_of_branches_have_the_say(catalog: Path, tmp_path: Path, git: Git) -> None:
    there = branches.create(catalog, "2026a", "HEAD", tmp_path / "tree")
    file = there / "releases" / "2026a.yaml"
    file.write_text('nightly: "0 3 * * *"\nsupported_until: 2026-12-31\n' + file.read_text())
    branches.commit(there, "Nights")
    (catalog / "releases" / "2025b.yaml").write_text("release: 2025b\n")
    assert [(one.release, one.branch, bool(one.problem)) for one in branches.releases(catalog)] == [
        ("2026a", True, False),
        ("2025b", False, True),
    ]
    rows = list(
        zip(*(column.cells for column in releases(branches.releases(catalog), date(2027, 1, 1)).columns), strict=True)
    )
    assert [[str(cell) for cell in row[:5]] for row in rows] == [
        ["2026a", "branch", "ended", "2026-12-31", "0 3 * * *"],
        ["2025b", "catalog", "mistakes", "", ""],
    ]
    own_catalog = Catalog(catalog, {}, {}, {}, {name: Release(name, ()) for name in ("2026a", "2025b")})
    assert [(one.name, one.nightly) for one in branches.nights(own_catalog)] == [("2026a", "0 3 * * *"), ("2025b", "")]
