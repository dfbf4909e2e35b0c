"""The packages that a bundle takes as source: which they are, and what is wrong with how they are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.core.documents import Mistakes
from flows.locks import python_lockfile, source_builds
from flows.locks.pipfile import read_pipfile

PIPFILE = """\
[[source]]
name = "pypi"
url = "https://pypi.org/simple"
verify_ssl = true

[packages]
Py_Spark = "*"

[builder]
setuptools = "*"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle's folder for one Python; the bundle takes `py-spark` as source."""
    (tmp_path / "py311").mkdir()
    (tmp_path / "py311" / "Pipfile").write_text(PIPFILE)
    (tmp_path / "builder").mkdir()
    source_builds.sources_file(tmp_path).write_text("# no wheels\n\npy.spark  # since 1.0\n")
    return tmp_path / "py311"


def mistakes(folder: Path, sources: str) -> list[tuple[str, int, str]]:
    source_builds.sources_file(folder.parent).write_text(sources)
    with pytest.raises(Mistakes) as error:
        read_pipfile(folder / "Pipfile")
    return [(mistake.file.name, mistake.line, mistake.what) for mistake in error.value.mistakes]


def test_names_are_those_of_the_lock_however_they_are_written(folder: Path) -> None:
    taken = read_pipfile(folder / "Pipfile").built
    assert taken == {"py-spark": (source_builds.sources_file(folder.parent), 3)}
    lines = ("py_spark==1.0; python_version >= '3' --hash=sha256:aa", "six[x]==1.0 --hash=sha256:bb")
    assert python_lockfile.split(lines, taken) == (lines[1:], lines[:1])
    assert python_lockfile.split(lines, {}) == (lines, ())


@pytest.mark.parametrize(
    ("sources", "line", "what"),
    [
        ("py-spark==1.0\n", 1, "'py-spark==1.0' is not the name of a package"),
        ("../../etc\n", 1, "not the name of a package"),
        ("py-spark\n\nPy.Spark\n", 3, "stands already in"),
        ("SetupTools\n", 1, "every package needs a wheel"),
    ],
)
def test_mistakes_are_told_with_their_line(folder: Path, sources: str, line: int, what: str) -> None:
    ((file, at, said),) = mistakes(folder, sources)
    assert (file, at) == ("sources.txt", line)
    assert what in said


def test_without_a_section_of_what_builds_them_nothing_can_be_built(folder: Path) -> None:
    (folder / "Pipfile").write_text(PIPFILE.partition("[builder]")[0])
    assert mistakes(folder, "py-spark\n") == [("Pipfile", 1, "it has no section [builder]")]


def test_a_package_that_nobody_asks_for_is_named(folder: Path) -> None:
    pipfile = read_pipfile(folder / "Pipfile")
    entry = {"version": "==1.0", "hashes": ["sha256:aa"]}
    assert python_lockfile.unlocked({"default": {"py-spark": entry}}, pipfile) == []
    # A package that only builds others is in no image.
    (mistake,) = python_lockfile.unlocked({"default": {}, "builder": {"py-spark": entry}}, pipfile)
    assert (mistake.file, mistake.line) == (source_builds.sources_file(folder.parent), 3)
    assert mistake.what == "py-spark is not in py311/Pipfile.lock"


def test_variables_for_sources_come_from_all_bundles_and_the_last_one_holds(folder: Path, tmp_path: Path) -> None:
    file = folder.parent / "builder" / "environment.txt"
    file.write_text("# how\nMODE=ABI  # and why\nHOME_OF_R=/usr/lib/R\n")
    assert read_pipfile(folder / "Pipfile").environment == {"MODE": "ABI", "HOME_OF_R": "/usr/lib/R"}
    (tmp_path / "above" / "builder").mkdir(parents=True)
    (tmp_path / "above" / "builder" / "environment.txt").write_text("MODE=API\n")
    assert source_builds.environment([folder.parent, tmp_path / "above"])["MODE"] == "API"


@pytest.mark.parametrize("line", ["mode=ABI", "MODE", "MODE =ABI", "export MODE=ABI", "=", "\x00"])
def test_a_line_that_sets_no_variable_is_a_mistake(folder: Path, line: str) -> None:
    (folder.parent / "builder" / "environment.txt").write_text(f"\n{line}\n")
    with pytest.raises(Mistakes, match=r"environment\.txt:2: .*sets no variable"):
        read_pipfile(folder / "Pipfile")
