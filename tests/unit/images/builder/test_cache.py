"""Caches: which files go, that builds in progress are awaited, and that each build's archives come back."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.core.errors import UnknownName
from flows.core.settings import Settings
from flows.images.builder import cache
from flows.images.builder.cache import File, surplus
from flows.images.builder.workspace import workspace
from tests.support.waiting import PATIENCE

NOW = datetime(2026, 11, 20, tzinfo=UTC)
FILES = st.lists(
    st.builds(
        lambda name, size, age: File(Path(str(name)), size, NOW - timedelta(days=age)),
        st.integers(0, 99),
        st.integers(0, 1000),
        st.integers(0, 9),
    ),
    unique_by=lambda file: file.path,
)


@given(FILES, st.integers(0, 5000))
def test_the_least_recently_used_go_and_no_more_than_have_to(files: list[File], limit: int) -> None:
    going = surplus(files, limit)
    staying = set(files) - set(going)
    left = sum(file.size for file in staying)
    assert left <= limit or not staying
    if going:
        assert left + going[-1].size > limit
        assert all(file.used >= going[-1].used for file in staying)


def fill(settings: Settings, name: str, *ages: int) -> list[Path]:
    """Files of a megabyte that were used so many days ago."""
    paths = [settings.folder("cache", name) / str(age) for age in ages]
    for path, age in zip(paths, ages, strict=True):
        path.write_bytes(os.urandom(1_000_000))
        then = (NOW - timedelta(days=age)).timestamp()
        os.utime(path, (then, then))
    return paths


def small(settings: Settings) -> Settings:
    """Room for two such files in each cache."""
    return settings.model_copy(update={"cache_gb": 0.0025})


def test_a_cache_is_brought_under_its_limit(settings: Settings) -> None:
    old, older, new = fill(settings, "pip", 5, 9, 1)
    results = {each.name: each for each in cache.caches(small(settings))}
    assert (results["pip"].used, results["npm"].used) == (NOW - timedelta(days=1), None)
    assert results["pip"].size >= 3_000_000 > results["pip"].limit == 2_500_000
    assert cache.prune(small(settings))["pip"] >= 1_000_000
    assert [path.exists() for path in (old, older, new)] == [True, False, True]
    assert cache.prune(small(settings)) == dict.fromkeys(cache.VARIABLES, 0)


def test_what_would_be_broken_without_some_of_its_files_goes_as_a_whole(settings: Settings) -> None:
    fill(settings, "uv", 1, 2, 3)
    assert cache.prune(small(settings), ["uv"])["uv"] >= 3_000_000
    assert cache.caches(settings)[-1].size == 0


def test_all_or_some_caches_are_emptied(settings: Settings) -> None:
    fill(settings, "apt", 1)
    kept = fill(settings, "npm", 1)
    assert cache.prune(settings, ["apt"], everything=True).keys() == {"apt"}
    assert not (settings.home / "cache" / "apt").exists() and kept[0].exists()
    with pytest.raises(UnknownName, match="'pipp'"):
        cache.prune(settings, ["pipp"])


@pytest.mark.slow
def test_nothing_goes_while_something_is_built(settings: Settings) -> None:
    (path,) = fill(settings, "pip", 9)
    pruner = threading.Thread(target=cache.prune, args=(settings,), kwargs={"everything": True})
    with workspace(settings):
        pruner.start()
        pruner.join(0.3)
        assert pruner.is_alive() and path.exists()
    pruner.join(PATIENCE)
    assert not path.exists()


@pytest.mark.slow
def test_each_build_has_archives_of_its_own_and_gives_back_what_it_brought(settings: Settings, tmp_path: Path) -> None:
    builds = [tmp_path / "one", tmp_path / "two"]
    for own in builds:
        own.mkdir()
        variables, mounts = cache.offer(own, "/mnt", settings)
        assert variables["UV_CACHE_DIR"] == "/mnt/cache/uv"
        assert (mounts[own / "apt"], mounts[own / "dnf"]) == ("/mnt/apt", "/mnt/dnf")
        assert all((own / Path(target).relative_to("/mnt")).is_dir() for target in mounts.values())
        (own / "apt" / "tree.deb").write_text("tree")
        (own / "dnf/main-0123/packages").mkdir(parents=True)
        (own / "dnf/main-0123/packages/tree.rpm").write_text("tree")
        (own / "dnf/main-0123/list.xml").touch()
    for own in builds:
        cache.take_back(own, settings)
    third = tmp_path / "three"
    third.mkdir()
    cache.offer(third, "/mnt", settings)
    assert [path.read_text() for path in (third / "apt").iterdir()] == ["tree"]
    kept = [path.relative_to(third) for path in (third / "dnf").rglob("*") if path.is_file()]
    assert kept == [Path("dnf/main-0123/packages/tree.rpm")]


def test_without_caches_nothing_is_kept(settings: Settings, tmp_path: Path) -> None:
    none = settings.model_copy(update={"cache_gb": 0.0})
    variables, mounts = cache.offer(tmp_path, "/mnt", none)
    assert variables == {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1"}
    assert mounts == {tmp_path / "apt": "/mnt/apt"}
    (tmp_path / "apt" / "tree.deb").touch()
    cache.take_back(tmp_path, none)
    assert not (settings.home / "cache" / "apt").exists()
