"""A person's bundle in the catalog: what it stands on, what it can't be, and whose its stages are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.authoring.own.catalog import Wish, check_name, check_new_name, composed, looks_like
from flows.catalog import load
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.recipe import Assembler
from flows.images.stages import Kind, Stage, inputs, layer_key, of_a_person
from tests.support.machine import ROOT

WISH = Wish("mine", "ada", "runtime", "deb12", "2026a")
FILES = {
    "display.txt": b"Ada's own\n",
    "bundle.yaml": b"extends: minimal\n",
    "py311/Pipfile": b'[packages]\niniconfig = "~=2.0"\n\n[requires]\npython_version = "3.11"\n',
    "custom/custom.snippet.j2": b"RUN echo {{ bundle }}\n",
}


@pytest.fixture
def own(settings: Settings) -> Settings:
    return settings.model_copy(update={"catalog": ROOT})


def said(own: Settings, wish: Wish = WISH, **changed: bytes) -> str:
    with pytest.raises(RefitError) as error, composed(wish, {**FILES, **changed}, own):
        pass
    return str(error.value)


def test_a_bundle_of_ones_own_is_a_profile_of_a_catalog_that_goes(own: Settings) -> None:
    with composed(WISH, FILES, own) as (catalog, profile):
        root = catalog.root
        assert profile.stem == "runtime-mine-deb12-py311" and profile.bundle.owner == "ada"
        assert [*catalog.releases["2026a"].profiles] == [profile] and not catalog.bundles["minimal"].owner
        assert profile.size_budget == 8_000_000_000 and root.is_relative_to(own.home)
    assert not root.exists()


def test_it_is_never_called_like_one_of_the_catalog(own: Settings) -> None:
    assert "The catalog has a bundle 'minimal'" in said(own, replace(WISH, name="minimal"))
    for name in ("../x", "Mine", "a-b", "", "min\u0456mal", "minimal\u200b", "ｍinimal"):
        assert "can't be the name" in said(own, replace(WISH, name=name))
    for name, kind in (("jupyter", "an IDE"), ("deb12", "an operating system")):  # stages have their names in theirs
        assert f"The catalog has {kind} {name!r}" in said(own, replace(WISH, name=name))
    for release in ("../../../x", "", "2026", "/etc/x"):  # it becomes the name of a file
        assert "can't be the name of a release" in said(own, replace(WISH, release=release))


@pytest.mark.parametrize("twin", ["minima1", "mlnlmal", "rninimal", "min1mal"])
def test_a_name_that_looks_like_one_of_the_catalog_is_refused_as_long_as_nobody_has_it(
    own: Settings, twin: str
) -> None:
    wish = replace(WISH, name=twin)
    with pytest.raises(RefitError, match="The catalog has a bundle 'minimal'"), composed(wish, FILES, own, new=True):
        pass
    with composed(wish, FILES, own) as (_, profile):  # of a night, or at the start of a session
        assert profile.bundle.name == twin
    assert looks_like(twin, load.load_catalog(ROOT)) == "a bundle 'minimal'" and not looks_like(
        "mine", load.load_catalog(ROOT)
    )


def test_a_name_that_leads_to_a_successor_is_not_to_be_had() -> None:
    whole = load.load_catalog(ROOT)
    release = replace(
        whole.releases["2026a"], retired={"cuda-jupyter-legacy-deb11-py39": "jupyter-minimal-deb12-py311"}
    )
    retired = replace(whole, releases={"2026a": release})
    with pytest.raises(RefitError, match="a retired bundle 'legacy'"):
        check_name("legacy", retired)
    with pytest.raises(RefitError, match="a retired bundle 'legacy'"):
        check_new_name("1egacy", retired)
    assert check_name("other", retired) == "other" and check_name("legacy", whole) == "legacy"


def test_mistakes_are_told_by_its_own_paths(own: Settings) -> None:
    assert "bundle.yaml:1: there is no bundle 'nowhere'" in said(own, **{"bundle.yaml": b"extends: nowhere\n"})
    assert "custom/custom.snippet.j2:1: " in said(own, **{"custom/custom.snippet.j2": b"COPY a b\n"})
    lines = said(own, **{"os/os-packages.txt": b"tmux\nno/package\n"})
    assert "os/os-packages.txt:2: " in lines and str(own.home) not in lines


@pytest.mark.parametrize(
    "template",
    [
        b'{% include "/etc/shadow" %}',
        b'{% include "../../../../etc/shadow" %}',
        b'{% include "snippets/../../../x" %}',
        b"{{ ''.__class__.__mro__ }}",
        b"{% for a in range(10**9) %}x{% endfor %}",
        b'{% include "custom/custom.snippet.j2" %}',
    ],
)
def test_its_template_reaches_nothing_else(own: Settings, template: bytes) -> None:
    assert "custom/custom.snippet.j2" in said(own, **{"custom/custom.snippet.j2": template})


def test_a_snippet_of_the_catalog_brings_no_instruction_that_is_none_of_its_own(own: Settings) -> None:
    """A template may build its instruction of pieces: its rendered text is looked at."""
    text = b"{% set word = 'CO' ~ 'PY' %}{{ word }} /etc/shadow /x\n"
    assert "no RUN or ENV" in said(own, **{"custom/custom.snippet.j2": text})


def test_all_stages_above_the_base_are_confined_and_its_owners(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.locks.python_lockfile.verify", lambda folder: None)
    monkeypatch.setattr("flows.locks.python_lockfile.read", lambda folder, categories: ())
    with composed(WISH, FILES, own) as (catalog, profile):
        base, *above = Assembler(catalog, lambda base: ()).chain(profile)
    assert above and not base.confined and {stage.confined for stage in above} == {"ada"}


def test_a_layer_that_one_person_made_is_never_taken_for_another() -> None:
    """A closed layer has no parent in its key: the work of a hostile layer below would reach everybody."""
    wheels = Stage("wheels", Kind.wheels, "base", "RUN make")
    base, python = Stage("base", Kind.bootstrap, None, ""), Stage("p", Kind.closed, "base", "RUN x", wheels=wheels)
    keys = set()
    for owner in ("", "ada", "bob"):
        mine = of_a_person((base, python), owner)
        assert mine[0].confined == "" and mine[1].wheels and mine[1].wheels.confined == owner
        keys.add((layer_key(mine[1], None, {}), str(inputs(mine[1], None, {}))))
    assert len(keys) == 3
