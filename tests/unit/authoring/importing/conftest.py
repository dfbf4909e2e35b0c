"""A checkout of one recipe, and its import."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.authoring.importing.adoption import adopt
from flows.authoring.importing.report import REPORT, Adoption
from flows.catalog import load
from flows.catalog.model import Catalog
from flows.images.recipe import Assembler
from tests.support.checkout import DIGEST, LOCK, PIPFILE, RECIPE, Import, begins, write
from tests.support.machine import ROOT


@pytest.fixture(scope="module")
def own() -> Catalog:
    return load.load_catalog(ROOT)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    write(root, "snippets/bundles/1-minimal/py39/Pipfile", PIPFILE)
    write(root, "snippets/bundles/1-minimal/py39/Pipfile.lock", LOCK % DIGEST)
    write(root, "snippets/ides/1-runtime/runtime.snippet", "USER 1001\n")
    write(root, f"recipes/{RECIPE}/Containerfile", f"{begins(RECIPE)}USER 1001\n")
    return root


@pytest.fixture
def imported(checkout: Path, own: Catalog, tmp_path: Path) -> Import:
    """Import the checkout; the catalog that comes out has no mistakes, and its release is what the table says."""

    def run(cuda: str = "") -> Adoption:
        made = adopt(checkout, tmp_path / "catalog", own, cuda)
        catalog = load.load_catalog(made.catalog)
        there = {recipe.line for recipe in made.recipes if not recipe.why}
        assert sum(len(release.profiles) for release in catalog.releases.values()) == len(there) == made.profiles
        for release in catalog.releases.values():
            for profile in release.profiles:
                assert Assembler(catalog, lambda base: tuple(f"{name}=0" for name in base.packages)).chain(profile)
        theirs = [path for path in (checkout / "recipes").iterdir() if path.is_dir() and not path.is_symlink()]
        assert len(made.recipes) == len(theirs)
        report = (made.catalog / REPORT).read_text()
        assert report.count("\n- [ ] ") == len(made.notes) + len(made.unlisted)
        return made

    return run
