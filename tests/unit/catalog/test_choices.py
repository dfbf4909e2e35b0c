"""Questions of the wizard: only what is possible after what was answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.catalog import choices, load
from flows.catalog.choices import Impossible
from flows.catalog.model import Catalog
from flows.core.errors import UnknownName
from tests.support.small_catalog import catalog

__all__ = ["catalog"]


def names(catalog: Catalog, question: str, **answers: str) -> list[str]:
    return [option.name for option in choices.options(catalog, question, answers)]


def test_only_what_is_possible_is_asked(catalog: Catalog) -> None:
    assert names(catalog, "os") == ["deb12", "deb13"]
    assert names(catalog, "python", os="deb13") == ["py313"]
    assert names(catalog, "bundle", os="deb13", python="py313") == ["both"]
    assert names(catalog, "ide", os="deb12", python="py311", bundle="both") == ["jupyter", "runtime"]
    assert names(catalog, "ide", bundle="old") == ["runtime"]
    assert names(catalog, "os", bundle="old") == ["deb12"]


def test_menus_show_texts_in_their_order(catalog: Catalog) -> None:
    shown = [option.display for option in choices.options(catalog, "bundle", {})]
    assert shown == ["The bundle 1-both", "The bundle 2-old"]


def test_what_is_impossible_is_refused_with_reason_and_nearest(catalog: Catalog) -> None:
    body = {"os": "deb12", "python": "py311", "cuda": "none", "bundle": "old", "ide": "jupyter"}
    with pytest.raises(Impossible) as caught:
        choices.options(catalog, "os", body)
    assert "has no [jupyter] for the packages of this IDE" in str(caught.value)
    assert "nearest that can be: jupyter-both-deb12-py311" in str(caught.value)
    with pytest.raises(Impossible, match="operating system deb13"):
        choices.options(catalog, "ide", {"bundle": "old", "os": "deb13"})


def test_a_misspelt_answer_comes_with_the_nearest(catalog: Catalog) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'jupyter'"):
        choices.options(catalog, "os", {"ide": "jupiter"})


def test_an_empty_catalog_can_make_nothing(tmp_path: Path) -> None:
    with pytest.raises(Impossible, match="it has no operating system and no Python and no bundle and no IDE"):
        choices.options(load.load_catalog(tmp_path), "os", {})
