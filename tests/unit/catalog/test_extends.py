"""Bundles that extend others: what they have of them, and what can be wrong with that."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from flows.catalog import load
from flows.catalog.model import Bundle
from flows.core.documents import Mistakes
from flows.images.recipe import Assembler
from flows.locks.pipfile import Pipfile, as_text, read_pipfile

ROOT = Path(__file__).parents[3]
SOURCE = '[[source]]\nname = "pypi"\nurl = "https://pypi.org/simple"\nverify_ssl = true\n\n'
REQUIRES = '\n[requires]\npython_version = "3.11"\n'
FIRST = f'{SOURCE}[packages]\nsix = "~=1.16"\n\n[jupyter]\njupyterlab = "*"\n{REQUIRES}'
SECOND = f'[packages]\nnumpy = {{version = "~=2.0", extras = ["a"]}}\nsix = "~=1.17"\n{REQUIRES}'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A catalog with three bundles: `third` extends `second`, and that extends `first`."""
    for part in ("base/deb12", "ides/1-jupyter", "ides/2-runtime"):
        shutil.copytree(ROOT / part, tmp_path / part)
    bundle(tmp_path, "2-first", FIRST, packages="git\n")
    bundle(tmp_path, "3-second", SECOND, extends="first", packages="git\nless\n")
    bundle(tmp_path, "1-third", f'[jupyter]\nipympl = "*"\n{REQUIRES}', extends="second")
    return tmp_path


def bundle(root: Path, name: str, pipfile: str, extends: str = "", packages: str = "") -> None:
    folder = root / "bundles" / name
    (folder / "py311").mkdir(parents=True, exist_ok=True)
    (folder / "os").mkdir(exist_ok=True)
    (folder / "display.txt").write_text(f"{name}\n")
    (folder / "os/os-packages.txt").write_text(packages)
    (folder / "py311/Pipfile").write_text(pipfile)
    if extends:
        (folder / "bundle.yaml").write_text(f"# Why it is one of its own.\nextends: {extends}\n")


def bundles(root: Path) -> dict[str, Bundle]:
    return dict(load.load_catalog(root).bundles)


def asked(root: Path, name: str) -> Pipfile:
    return read_pipfile(root / "bundles" / name / "py311/Pipfile")


def mistakes(root: Path) -> list[tuple[str, int, str]]:
    with pytest.raises(Mistakes) as error:
        load.load_catalog(root)
    return [(m.file.relative_to(root).as_posix(), m.line, f"{m.what}: {m.hint}") for m in error.value.mistakes]


def test_a_bundle_has_all_of_those_that_it_extends(root: Path) -> None:
    third = bundles(root)["third"]
    assert [folder.name for folder in third.lineage] == ["2-first", "3-second", "1-third"]
    assert third.packages == ("git", "less")
    assert third.categories == {"py311": ("packages", "jupyter")}


def test_all_lists_are_locked_as_one_and_the_nearer_word_holds(root: Path) -> None:
    third = asked(root, "1-third")
    assert third.packages == {
        "packages": {"six": "~=1.17", "numpy": {"version": "~=2.0", "extras": ["a"]}},
        "jupyter": {"jupyterlab": "*", "ipympl": "*"},
    }
    assert [source["url"] for source in third.sources] == ["https://pypi.org/simple"]
    assert tomllib.loads(as_text(third.data)) == third.data


def test_a_change_below_makes_the_lock_above_one_of_another_pipfile(root: Path) -> None:
    before = {name: asked(root, name).digest for name in ("2-first", "3-second", "1-third")}
    bundle(root, "3-second", SECOND.replace("2.0", "2.1"), extends="first")
    after = {name: asked(root, name).digest for name in before}
    assert [name for name in before if before[name] != after[name]] == ["3-second", "1-third"]


def test_the_own_instructions_of_all_are_carried_out_the_farthest_first(root: Path) -> None:
    for name in ("2-first", "1-third"):
        (root / "bundles" / name / "custom").mkdir()
        (root / "bundles" / name / "custom/custom.snippet.j2").write_text(f"RUN echo {name}\n")
    shutil.copytree(ROOT / "snippets", root / "snippets")
    choice = "  - {ide: runtime, bundle: third, os: deb12, python: py311}\n"
    (root / "releases").mkdir()
    (root / "releases/2026a.yaml").write_text(f"release: 2026a\nprofiles:\n{choice}")
    catalog = load.load_catalog(root)
    (profile,) = catalog.releases["2026a"].profiles
    assembler = Assembler(catalog, lambda base: tuple(f"{name}=1" for name in base.packages))
    stage = assembler._custom(profile, assembler.foundation(profile.base, "py311"))
    assert stage and stage.text == "RUN echo 2-first\nRUN echo 1-third\n"


@pytest.mark.parametrize(
    ("extends", "line", "words"),
    [
        ("frist", 2, "there is no bundle 'frist': did you mean 'first'?"),
        ("third", 2, "it extends itself: third → second → third"),
        ("second", 2, "it extends itself: second → second"),
        ("Second!", 2, "should match pattern"),
        ("first\nextend: first", 3, "unknown key: did you mean 'extends'?"),
    ],
)
def test_what_can_not_be_extended(root: Path, extends: str, line: int, words: str) -> None:
    bundle(root, "3-second", SECOND, extends=extends)
    results = [mistake for mistake in mistakes(root) if mistake[0] == "bundles/3-second/bundle.yaml"]
    assert [(number, words in what) for _, number, what in results] == [(line, True)]


def test_all_mistakes_come_at_once(root: Path) -> None:
    bundle(root, "3-second", SECOND, extends="none")
    bundle(root, "4-fourth", FIRST.replace("[jupyter]", "[jupiter]"), extends="first")
    (root / "bundles/4-fourth/py312").mkdir()
    (root / "bundles/4-fourth/py312/Pipfile").write_text(REQUIRES.replace("3.11", "3.12"))
    result = mistakes(root)
    assert [(file, line) for file, line, _ in result] == [
        ("bundles/3-second/bundle.yaml", 2),
        ("bundles/4-fourth/py311/Pipfile", 9),
        ("bundles/4-fourth/py312", 0),
    ]
    assert "no IDE has the category 'jupiter': did you mean 'jupyter'?" in result[1][2]
    assert "first, which it extends, has no py312" in result[2][2]


def test_what_another_says_already_is_not_said_again(root: Path) -> None:
    repeated = SOURCE.replace("pypi.org", "index.example") + SECOND.replace("1.17", "1.16")
    bundle(root, "3-second", repeated, extends="first")
    with pytest.raises(Mistakes) as error:
        asked(root, "1-third")
    assert [(m.file.parent.parent.name, m.line) for m in error.value.mistakes] == [("3-second", 1), ("3-second", 8)]
    assert "another one in" in str(error.value) and "six: " in str(error.value)
