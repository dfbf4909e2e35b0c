"""The wizard's answers: given, picked or without a choice; and what is written of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog import load
from flows.catalog.choices import Option
from flows.catalog.model import Catalog
from flows.cli import wizard
from flows.core.errors import RefitError
from tests.support.small_catalog import FILE, catalog
from tests.support.terminal import Terminal

__all__ = ["catalog"]  # a fixture
WHOLE = {"os": "deb12", "python": "py311", "cuda": "none", "bundle": "both", "ide": "jupyter"}


def test_a_person_is_asked_only_where_there_is_a_choice(catalog: Catalog) -> None:
    asked: list[tuple[str, list[str]]] = []

    def last(title: str, possible: Sequence[Option]) -> str:
        asked.append((title, [option.name for option in possible]))
        return possible[-1].name

    assert wizard.answer(catalog, {}, last) == {
        **WHOLE,
        "os": "deb13",
        "python": "py313",
        "ide": "runtime",
    }
    assert asked == [("operating system", ["deb12", "deb13"]), ("IDE", ["jupyter", "runtime"])]


def test_each_answer_is_shown_with_the_smallest_image_that_it_leaves(catalog: Catalog) -> None:
    seen: list[tuple[str, int | None]] = []

    def first(_: str, possible: Sequence[Option]) -> str:
        seen.extend((option.name, option.size) for option in possible)
        return possible[0].name

    sizes = {"jupyter-both-deb12-py311": 170_000_000, "runtime-both-deb12-py311": 90_000_000}
    wizard.answer(catalog, {"python": "py311", "bundle": "both"}, first, sizes)
    assert seen == [("jupyter", 170_000_000), ("runtime", 90_000_000)]
    seen.clear()
    wizard.answer(catalog, {"ide": "runtime"}, first, sizes)
    assert ("deb12", 90_000_000) in seen


def test_without_a_terminal_nothing_is_asked(catalog: Catalog) -> None:
    assert wizard.answer(catalog, WHOLE, None) == WHOLE
    with pytest.raises(RefitError, match=r"say --bundle NAME"):
        wizard.answer(catalog, {"os": "deb12"}, None)
    assert wizard.choose_release(catalog, None) == "2026a"


def test_a_profile_is_added_to_the_file_of_its_release(catalog: Catalog) -> None:
    profile = wizard.profile(catalog, "2026a", WHOLE)
    assert (profile.stem, profile.release) == ("jupyter-both-deb12-py311", "2026a")
    file = wizard.write(catalog, "2026a", WHOLE)
    assert file.read_text() == FILE + "  - {ide: jupyter, bundle: both, os: deb12, python: py311}\n"
    assert load.profile(load.load_catalog(catalog.root), "2026a", profile.stem) == profile
    with pytest.raises(RefitError, match="stands already in line"):
        wizard.write(catalog, "2026a", WHOLE)
    assert file.read_text().count("bundle: both") == 1


def test_a_release_has_a_profile_with_one_level_of_cuda(catalog: Catalog) -> None:
    release = catalog.releases["2026a"]
    devel = replace(release.profiles[0], cuda_level="devel")
    release = replace(release, profiles=(devel,))
    assert wizard.stands_in(release, devel)
    assert not wizard.stands_in(release, replace(devel, stem="jupyter-other-deb12-py311"))
    with pytest.raises(RefitError, match=r"already, with CUDA devel.\n.*\n.*--cuda devel"):
        wizard.stands_in(release, replace(devel, cuda_level="runtime"))


def test_the_line_that_does_the_same() -> None:
    line = wizard.command_line("2026a", WHOLE, writing=True, building=False)
    assert line == (
        "refit wizard --release 2026a --os deb12 --python py311 --cuda none --bundle both --ide jupyter "
        "--write --no-build"
    )


@pytest.mark.slow
def test_a_person_at_a_terminal(catalog: Catalog, tmp_path: Path) -> None:
    nowhere = {"REFIT_REGISTRY_PORT": "9", "REFIT_DEBIAN_MIRROR": "http://127.0.0.1:9"}
    environment = {**os.environ, "REFIT_HOME": str(tmp_path / "home"), "REFIT_CATALOG": str(catalog.root), **nowhere}
    person = Terminal([str(Path(sys.executable).parent / "refit"), "wizard", "--python", "py311"], environment)
    person.wait_for("Which bundle?", 60)
    person.wait_for("Number [1]: ")
    person.type("3\n")  # there are two
    person.wait_for("Number [1]: 3")
    person.type("1\n")
    person.wait_for("Which IDE?")
    person.type("\n")
    person.wait_for("can't be shown yet", 60)
    person.wait_for("Add jupyter-both-deb12-py311 to 2026a?")
    person.type("y\n")
    person.wait_for("Build it?")
    person.type("n\n")
    assert person.exit_code() == 0
    assert wizard.command_line("2026a", WHOLE, writing=True, building=False) in " ".join(person.shown.split())
    assert "bundle: both" in (catalog.root / "releases" / "2026a.yaml").read_text()
