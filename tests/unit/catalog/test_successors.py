"""Names of profiles that are retired, or whose release is over, lead to what has taken their place."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from flows.catalog import load, successors
from flows.catalog.model import Catalog, Profile
from flows.core.documents import Mistakes
from flows.core.errors import RefitError, UnknownName
from tests.support.machine import ROOT

TODAY = date(2027, 6, 1)
OLD, GONE = "jupyter-minimal-deb12-py311", "jupyter-legacy-deb11-py39"
NEW = "jupyter-minimal-deb13-py313"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """2025a is over, 2026a and 2027a are supported; the last one has another profile in the place of an old one."""
    whole = load.load_catalog(ROOT)
    release = whole.releases["2026a"]
    old, new = (next(one for one in release.profiles if one.stem == stem) for stem in (OLD, NEW))

    def of(name: str, *profiles: Profile) -> tuple[Profile, ...]:
        return tuple(replace(one, release=name) for one in profiles)

    releases = {
        "2025a": replace(release, name="2025a", profiles=of("2025a", old), supported_until=date(2026, 12, 31)),
        "2026a": replace(release, profiles=of("2026a", old, new), retired={GONE: OLD}),
        "2027a": replace(release, name="2027a", profiles=of("2027a", new), retired={OLD: NEW, GONE: NEW}),
    }
    return replace(whole, releases=releases)


@pytest.mark.parametrize(
    ("release", "stem", "leads_to"),
    [
        ("2026a", OLD, ("2026a", OLD)),
        ("2026a", GONE, ("2026a", OLD)),
        ("2025a", OLD, ("2026a", OLD)),
        ("2027a", OLD, ("2027a", NEW)),
        ("2024b", GONE, ("2026a", OLD)),
    ],
)
def test_an_old_name_leads_to_its_successor(
    catalog: Catalog, release: str, stem: str, leads_to: tuple[str, str]
) -> None:
    there = successors.current(catalog, release, stem, TODAY)
    assert (there.release, there.stem) == leads_to


def test_a_name_that_never_was_is_unknown_and_one_without_a_successor_is_refused(catalog: Catalog) -> None:
    with pytest.raises(UnknownName):
        successors.current(catalog, "2026a", "jupyter-typo-deb12-py311", TODAY)
    with pytest.raises(UnknownName):
        successors.current(catalog, "2029a", OLD, TODAY)
    with pytest.raises(RefitError, match="not supported any more"):
        successors.current(catalog, "2025a", "jupyter-typo-deb12-py311", TODAY)


@pytest.mark.parametrize(
    ("retired", "said"),
    [
        (f"{GONE}: jupyter-minimal-deb12-py312", "is no profile here"),
        (f"{OLD}: {OLD}", "is retired, and among the profiles"),
    ],
)
def test_a_retired_name_that_leads_nowhere_is_a_mistake_of_the_release(tmp_path: Path, retired: str, said: str) -> None:
    for kind in ("base", "bundles", "ides", "snippets"):
        shutil.copytree(ROOT / kind, tmp_path / kind)
    file = tmp_path / "releases" / "2026a.yaml"
    file.parent.mkdir()
    text = "release: 2026a\nprofiles:\n  - {ide: jupyter, bundle: minimal, os: deb12, python: py311}\nretired:\n  "
    file.write_text(f"{text}{retired}\n")
    with pytest.raises(Mistakes) as error:
        load.load_catalog(tmp_path)
    assert any(said in mistake.what and mistake.line == 5 for mistake in error.value.mistakes), error.value.mistakes
    file.write_text(f"{text}{GONE}: {OLD}\n")
    assert load.load_catalog(tmp_path).releases["2026a"].retired == {GONE: OLD}
