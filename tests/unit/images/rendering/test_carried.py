"""Programs of a recipe of one's own: they may read anything in the image below, so their layer is not carried."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog import load, tree
from flows.catalog.model import Base
from flows.images.recipe import Assembler
from flows.images.stages import Kind, Stage
from tests.support.machine import ROOT

# By their numbers in the report of an outside test: layers of programs that were carried, and differed from a build.
PROGRAMS = {
    "6a": "python3 -c 'import sysconfig, sys; print(sysconfig.get_paths(), file=open(sys.argv[1], \"w\"))' /opt/ide/x",
    "6b": "cat /usr/share/const >/opt/ide/x",
    "8g": "echo x >/opt/ide/x",
    "11c": "rm -f /opt/ide/of-the-parent",
    "12a": "cp /etc/timezone /opt/ide/timezone",
    "12b": "echo $LC_ALL >/opt/ide/x",
}
# Where a person may write a program, and the stage that runs it.
PLACES = {
    "ides/4-vscode/npm/npm.snippet.j2": "-npm",
    "ides/4-vscode/vscode.snippet.j2": "vscode-minimal-deb12-py311",
    "bundles/1-minimal/custom/custom.snippet.j2": "minimal-custom-deb12-py311",
    "snippets/environment.snippet.j2": "minimal-deb12-py311",
    "snippets/packages.snippet.j2": "-packages",
}
# Texts that others import: a change there changes what they run.
IMPORTED = ("snippets/packages.j2", "snippets/shell.j2")


def chain(root: Path) -> dict[str, Stage]:
    """The stages of VS Code's image."""
    recipes = load.load_catalog(root)
    profile = replace(
        recipes.releases["2026a"].profiles[0],
        stem="vscode-minimal-deb12-py311",
        ide=recipes.ides["vscode"],
        bundle=recipes.bundles["minimal"],
    )

    def resolve(base: Base) -> tuple[str, ...]:
        return tuple(sorted(f"{name}=1" for name in base.packages))

    return {stage.name: stage for stage in Assembler(recipes, resolve).chain(profile)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of this repository's catalog, to change."""
    for kind in tree.PARTS:
        shutil.copytree(ROOT / kind, tmp_path / kind)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_no_program_of_a_recipe_of_ones_own_is_carried(root: Path, program: str) -> None:
    for path in PLACES:
        file = root / path
        file.parent.mkdir(exist_ok=True)
        before = file.read_text() if file.exists() else ""
        file.write_text(f'{before}\n{{% import "snippets/shell.j2" as own with context %}}\nRUN {program}\n')
    stages = chain(root)
    for path, end in PLACES.items():
        [stage] = [stage for name, stage in stages.items() if name == end or (end[0] == "-" and name.endswith(end))]
        assert program in stage.text, path
        assert (stage.kind, stage.abi, stage.writes) == (Kind.instructions, {}, ()), path


@pytest.mark.slow
def test_refits_own_programs_are_carried(root: Path) -> None:
    closed = {name for name, stage in chain(root).items() if stage.kind is Kind.closed}
    assert {"minimal-deb12-py311", "vscode-minimal-deb12-py311-packages", "vscode-minimal-deb12-py311-npm"} <= closed


@pytest.mark.slow
@pytest.mark.parametrize("path", IMPORTED)
def test_a_change_to_what_refits_own_text_imports_is_a_change_to_it(root: Path, path: str) -> None:
    file = root / path
    file.write_text(file.read_text() + "{# of our own #}\n")
    assert chain(root)["minimal-deb12-py311"].kind is Kind.instructions


def test_a_comparison_of_texts_ends_where_they_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"a.j2": '{% import "b.j2" as b %}', "b.j2": '{% import "a.j2" as a %}'}
    monkeypatch.setattr(tree, "shipped_texts", lambda path: {texts[path]})
    assert tree.is_shipped("a.j2", texts)
    assert not tree.is_shipped("a.j2", {"a.j2": texts["a.j2"]}), "it imports what isn't there"
