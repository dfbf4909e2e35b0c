"""New recipes: the catalog accepts them as they are, and lint has nothing to say."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import httpx
import pytest

from flows.authoring.lint.catalog import lint
from flows.catalog import load, skeletons
from flows.catalog.model import Catalog
from flows.core.errors import RefitError
from tests.support.small_catalog import catalog
from tests.support.waiting import PATIENTLY, free_port, wait_until

__all__ = ["catalog"]  # a fixture


def add(catalog: Catalog, kind: str, name: str) -> Catalog:
    for path, text in skeletons.skeleton(kind, name, catalog).items():
        file = catalog.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return load.load_catalog(catalog.root)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "there"), [("bundle", "bundles"), ("ide", "ides"), ("base", "bases")])
def test_a_skeleton_is_a_recipe_without_mistakes(catalog: Catalog, kind: str, there: str) -> None:
    grown = add(catalog, kind, "new")
    assert list(getattr(grown, there)) == [*getattr(catalog, there), "new"]
    said = [str(m) for m in lint(catalog.root, date(2026, 11, 21)).mistakes if m.hint != "run `refit lock`"]
    assert said == []
    with pytest.raises(RefitError, match="already"):
        skeletons.skeleton(kind, "new", grown)


def test_a_new_bundle_asks_for_what_ides_need(catalog: Catalog) -> None:
    new = add(catalog, "bundle", "new").bundles["new"]
    assert set(new.pythons) == {"py311", "py313"}
    assert new.categories["py311"] == new.categories["py313"] == ("packages", "jupyter")
    assert "jupyterlab = '*'" in (new.pythons["py313"] / "Pipfile").read_text()


def test_a_new_bundle_is_for_what_others_are_for(catalog: Catalog) -> None:
    of_one = {name: replace(each, pythons={"py311": each.pythons["py311"]}) for name, each in catalog.bundles.items()}
    for bundles, pythons in ((of_one, {"py311"}), ({}, {"py311", "py313"})):
        paths = skeletons.skeleton("bundle", "new", replace(catalog, bundles=bundles))
        assert {Path(path).parent.name for path in paths if path.endswith("Pipfile")} == pythons


@pytest.mark.parametrize("name", ["", "My", "a-b", "../x", "a_b"])
def test_names_are_names(catalog: Catalog, name: str) -> None:
    with pytest.raises(RefitError, match="can't be the name"):
        skeletons.skeleton("ide", name, catalog)


@pytest.mark.slow
def test_a_new_ide_answers_whom_it_should(catalog: Catalog, tmp_path: Path) -> None:
    script = next(t for p, t in skeletons.skeleton("ide", "new", catalog).items() if p.endswith("files/start-new"))
    token = tmp_path / "token"
    token.write_text("hush-hush\n")
    port = free_port()
    environment = {**os.environ, "NEW_PORT": str(port), "REFIT_TOKEN_FILE": str(token), "NB_PREFIX": "/me"}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE)
    try:
        address = f"http://127.0.0.1:{port}/me"

        def status(path: str) -> int:
            try:
                return httpx.get(address + path, **PATIENTLY).status_code
            except httpx.TransportError:
                return 0

        wait_until(lambda: status("/health") == 200)
        assert [status(path) for path in ("/", "/?token=x", "/?token=hush-hush")] == [403, 403, 200]
    finally:
        process.terminate()
        assert b"hush" not in process.communicate()[1]
