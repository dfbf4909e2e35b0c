"""Nights in which something goes wrong outside of any build: the failure is told, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from prefect.logging.loggers import disable_run_logger

from flows import nightly
from flows.catalog.load import load_catalog
from flows.core.errors import UnknownName
from flows.core.programs import command
from flows.core.settings import Settings
from flows.images import stages
from flows.images.build import Built
from flows.images.plan import Plan
from flows.images.registry import Registry
from flows.images.run import opened
from flows.images.stages import Kind, Stage
from flows.nightly import _image_news, _prove, moved_by_hand, spend
from flows.publishing.published import Published
from flows.releases import branches
from flows.releases.outcomes import Attempt, Outcomes
from flows.releases.plan import ReleasePlan
from tests.support.machine import ROOT
from tests.support.waiting import free_port

DAY = date(2026, 11, 22)
RELEASE = "release: {0}\nprofiles:\n- {{ide: runtime, bundle: one, os: deb12, python: py311}}\n"


@pytest.fixture(autouse=True)
def without_a_run() -> Iterator[None]:
    """Loggers of runs that there are none of."""
    with disable_run_logger():
        yield


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A catalog with a mistake in a bundle, and a release with a branch that is checked out elsewhere."""
    folder = tmp_path / "catalog"
    write(folder / "bundles" / "1-one" / "bundle.yaml", "extend: [two]\n")
    for name in ("2026a", "2026b"):
        write(folder / "releases" / f"{name}.yaml", RELEASE.format(name))
    write(folder / "releases" / "2020a.yaml", f"{RELEASE.format('2020a')}supported_until: 2020-12-31\n")
    author = ("-c", "user.name=Ada", "-c", "user.email=ada@localhost")
    for words in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message=Begin"]):
        command.run(["git", "-C", folder, *words])
    branches.create(folder, "2026b", "HEAD", tmp_path / "elsewhere")
    return folder


@pytest.mark.slow
def test_a_mistake_in_the_catalog_is_told_of_its_own_releases_and_branches_are_followed(
    catalog: Path, settings: Settings
) -> None:
    with opened(settings, DAY) as run:
        night, alone = spend((), catalog, run), spend(["2026b"], catalog, run)
    assert [one.release for one in night.releases] == ["2026a", "2026b"] and list(night.ended) == ["2020a"]
    assert list(night.failures) == ["release 2026a", "release 2026b"]
    assert str(catalog / "bundles" / "1-one") in night.failures["release 2026a"]
    assert "The branch 2026b can't be checked out" in night.failures["release 2026b"]
    assert list(alone.failures) == ["release 2026b"]


@pytest.mark.slow
def test_nobody_can_have_a_night_of_a_release_that_is_not_there(catalog: Path, settings: Settings) -> None:
    with opened(settings, DAY) as run, pytest.raises(UnknownName, match="2026c"):
        spend(["2026c"], catalog, run)


@pytest.mark.slow
def test_a_registry_that_is_away_after_an_image_was_published_is_told(tmp_path: Path) -> None:
    image = Published("runtime-one", "runtime-one_2026a_20261122", "sha256:a", "sha256:b", 110_200_000, True, 9.5)
    away = Registry(Settings(home=tmp_path, registry=f"127.0.0.1:{free_port()}"))
    news = _image_news(image, f"sha256:{'a' * 64}", away)
    assert news.image is image and "registry" in news.problem


def test_a_graft_that_nobody_can_make_again_is_told(settings: Settings) -> None:
    base = Stage("base", Kind.bootstrap, None, "")
    top = Stage("top", Kind.closed, "base", "COPY file /file")
    planned = ReleasePlan((), stages.join({"top": [base, top]}), Plan({}))
    grafted = Built("top", "k", "l", "sha256:1", False, 0.1)
    with opened(settings, DAY) as run:
        proof = _prove(Attempt(planned, Outcomes({"top": grafted})), run)  # what it stands on is nowhere
    assert proof and proof.stage == "top" and proof.problem


def test_what_only_a_person_moves_is_found_in_the_recipes() -> None:
    recipes = load_catalog(ROOT)
    one = recipes.releases[max(recipes.releases)].profiles[0]

    def by_hand(ide: str, os: str, cuda: str = "") -> list[str]:
        return [*moved_by_hand(replace(one, ide=recipes.ides[ide], base=recipes.bases[os], cuda_level=cuda), recipes)]

    assert by_hand("jupyter", "deb12") == []
    npm = ["ides/4-vscode/npm/package-lock.json", "snippets/node/requirements.txt"]
    assert by_hand("vscode", "deb12", "runtime") == [
        *npm,
        *(f"base/cuda/locks/{level}.txt" for level in ("base", "runtime")),
    ]
    assert by_hand("vscode", "c9s", "runtime") == [recipes.bases["c9s"].config.image, *npm]
    assert by_hand("rstudio", "deb12") == [recipes.ides["rstudio"].config.downloads["rstudio"].url]
    assert all((recipes.root / name).is_file() for name in by_hand("vscode", "deb12", "runtime"))


def test_a_refit_that_is_a_pod_leaves_locks_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "is_pod", lambda _: True)
    recipes = load_catalog(ROOT)
    with opened(Settings(home=tmp_path), DAY) as run:
        assert nightly.refresh_locks(recipes.releases.values(), recipes, run) == (0, ())
