"""Pipfiles with mistakes, locks that don't fit, exports, and what a new lock changed."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.core.documents import Mistakes
from flows.core.errors import UnknownName
from flows.locks import make_python_lock, python_lockfile
from flows.locks.pipfile import read_pipfile
from tests.support.machine import ROOT

PIPFILE = """\
[[source]]
name = "pypi"
url = "https://pypi.org/simple"
verify_ssl = true

[packages]
six = "~=1.16"
requests = {version="*", extras=["socks"]}

[jupyter]
iniconfig = "*"
colorama = {version="*", markers="sys_platform == 'win32'"}

[requires]
python_version = "3.11"
"""
# Written by pipenv 2026.10.3 into the lock of just that Pipfile.
DIGEST = "db67d3173b681c2cf47e80fcb39a827829bba417df94aeb116020cc5a70672d1"
SHARED = {"version": "==1.17.0", "hashes": ["sha256:bb", "sha256:aa"], "markers": "python_version >= '2.7'"}
EXTRA = {"version": "==2.0", "hashes": ["sha256:cc"], "extras": ["socks"], "index": "pypi"}


def lock_of(pipfile: str = PIPFILE, **categories: object) -> dict[str, Any]:
    source = {"name": "pypi", "url": "https://pypi.org/simple", "verify_ssl": True}
    meta = {"hash": {"sha256": DIGEST}, "pipfile-spec": 6, "requires": {}, "sources": [source]}
    return {"_meta": meta, "default": {"six": SHARED, "requests": EXTRA}, "jupyter": {"six": SHARED}, **categories}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle's folder whose lock and exports fit its Pipfile."""
    (tmp_path / "Pipfile").write_text(PIPFILE)
    lock = lock_of()
    make_python_lock._write(
        tmp_path,
        {
            **python_lockfile.exports(lock, read_pipfile(tmp_path / "Pipfile")),
            "Pipfile.lock": make_python_lock._dump(lock),
        },
    )
    return tmp_path


def mistakes_of(folder: Path, text: str) -> list[str]:
    (folder / "Pipfile").write_text(text)
    with pytest.raises(Mistakes) as caught:
        read_pipfile(folder / "Pipfile")
    return [str(mistake).removeprefix(f"{folder}/") for mistake in caught.value.mistakes]


def test_a_pipfile(folder: Path) -> None:
    pipfile = read_pipfile(folder / "Pipfile")
    assert (pipfile.categories, pipfile.python) == (("packages", "jupyter"), "3.11")
    assert pipfile.digest == DIGEST


@pytest.mark.parametrize(
    ("before", "after", "where", "what"),
    [
        ("[packages]", "[packages", 6, "not valid TOML"),
        ("https://", "https://me:hush@", 3, "credential"),
        ("https://", "https://${WHO}@", 3, "credential"),
        ("https://pypi.org/simple", "https://pypi.org/simple?token=hush", 3, "credential"),
        ('url = "https://pypi.org/simple"', "", 1, "needs a name and a url"),
        ('name = "pypi"', "", 1, "needs a name and a url"),
        ("[packages]", "[pipenv]\ninstall_search_all_sources = true\n[packages]", 7, "decides for all of them"),
        ('six = "~=1.16"', 'six = {version = "*", index = "pypy"}', 7, "there is no source 'pypy' (known: pypi)"),
        ('six = "~=1.16"', 'six = "1.16 or so"', 7, "six"),
        ('six = "~=1.16"', '"not/a/name" = "*"', 7, "not/a/name"),
        ('six = "~=1.16"', 'six = {git = "https://example.org/six"}', 7, "'git' has no hash"),
        ('six = "~=1.16"', 'six = {path = "../six", editable = true}', 7, "'editable' has no hash"),
        ("[jupyter]", '["../../etc"]', 10, "not a name for a category"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, before: str, after: str, where: int, what: str) -> None:
    (mistake,) = mistakes_of(tmp_path, PIPFILE.replace(before, after))
    assert mistake.startswith(f"Pipfile:{where}:")
    assert what in mistake
    assert "hush" not in mistake


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = PIPFILE.replace("https://", "https://me:hush@").replace("~=1.16", "~1").replace('iniconfig = "*"', 'b = ">"')
    assert [line.split(":")[1] for line in mistakes_of(tmp_path, text)] == ["3", "7", "11"]


def test_a_missing_pipfile(tmp_path: Path) -> None:
    with pytest.raises(Mistakes, match="1 mistake"):
        read_pipfile(tmp_path / "Pipfile")


def test_exports_are_sorted_and_name_no_index(folder: Path) -> None:
    assert (folder / "requirements.txt").read_text() == (
        "requests[socks]==2.0 --hash=sha256:cc\n"
        "six==1.17.0; python_version >= '2.7' --hash=sha256:aa --hash=sha256:bb\n"
    )
    assert (folder / "requirements-jupyter.txt").read_text().startswith("six==1.17.0;")


def test_reading_some_categories_gives_each_line_once(folder: Path) -> None:
    lines = python_lockfile.read(folder, ("packages", "jupyter"))
    assert [line.split("==")[0] for line in lines] == ["requests[socks]", "six"]
    assert python_lockfile.versions(lines) == {"requests": "2.0", "six": "1.17.0"}


def test_a_lock_is_understood_once_unless_it_changes(folder: Path) -> None:
    before = python_lockfile.read(folder)
    hits = python_lockfile._understood.cache_info().hits
    assert python_lockfile.read(folder) == before
    assert python_lockfile._understood.cache_info().hits == hits + 1
    file = folder / "Pipfile.lock"
    name, _, version = before[0].split(" ")[0].partition("==")
    file.write_text(file.read_text().replace(f"=={version}", "==99.9"))
    assert f"{name}==99.9" in " ".join(python_lockfile.read(folder))


def test_an_unknown_category(folder: Path) -> None:
    with pytest.raises(UnknownName) as caught:
        python_lockfile.read(folder, ("jupiter",))
    assert "Did you mean 'jupyter'?" in str(caught.value)


def test_what_fits_is_accepted(folder: Path) -> None:
    python_lockfile.verify(folder)


@pytest.mark.parametrize(
    ("file", "before", "after", "what"),
    [
        ("Pipfile", "1.16", "1.15", "made of another Pipfile"),
        ("Pipfile.lock", '"==2.0"', '"==2.1"', "it doesn't say what Pipfile.lock says"),
        ("Pipfile.lock", "{", "", "not valid JSON"),
        ("Pipfile.lock", "https://pypi.org", "https://elsewhere.example", "sources"),
        ("Pipfile.lock", "sha256:cc", "md5:cc", "hashes.0"),
        ("Pipfile.lock", "sha256:cc", r"sha256:cc\n--index-url=https://elsewhere.example", "hashes.0"),
        ("requirements.txt", "sha256:cc", "sha256:dd", "it doesn't say"),
        ("requirements-jupyter.txt", "six", "sax", "it doesn't say"),
    ],
)
def test_what_does_not_fit_is_named(folder: Path, file: str, before: str, after: str, what: str) -> None:
    (folder / file).write_text((folder / file).read_text().replace(before, after, 1))
    with pytest.raises(Mistakes) as caught:
        python_lockfile.verify(folder)
    assert what in str(caught.value) and "refit lock" in str(caught.value)


@pytest.mark.parametrize("file", ["Pipfile.lock", "requirements.txt", "requirements-jupyter.txt"])
def test_a_missing_file_is_named(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(Mistakes, match="1 mistake") as caught:
        python_lockfile.verify(folder)
    assert file in str(caught.value)


def test_locks_that_can_not_be_used(folder: Path) -> None:
    pipfile = read_pipfile(folder / "Pipfile")
    assert python_lockfile.problems(lock_of(), pipfile) == {}
    other = {"six": {**SHARED, "version": "==1.16.0"}}
    assert python_lockfile.problems(lock_of(jupyter=other), pipfile) == {
        "six is 1.17.0 in [packages] but 1.16.0 in [jupyter]": ("jupyter", "six")
    }
    for entry in ({**SHARED, "hashes": []}, {"markers": "x"}, {**SHARED, "version": "*"}):
        (problem, *_) = python_lockfile.problems(lock_of(jupyter={"six": entry}), pipfile)
        assert problem == "six of [jupyter] has no exact version with hashes"


@pytest.mark.parametrize("own", sorted(ROOT.glob("bundles/*/py*")), ids=lambda path: path.parent.name)
def test_this_repository_s_own_locks_fit(own: Path) -> None:
    python_lockfile.verify(own)


def test_wheels_of_folders_are_accepted_beside_those_of_the_index() -> None:
    lock = make_python_lock.with_wheels(
        lock_of(), {("six", "1.17.0"): ["sha256:ab"], ("requests", "3.0"): ["sha256:ee"]}
    )
    assert lock["default"]["six"]["hashes"] == ["sha256:aa", "sha256:ab", "sha256:bb"]
    assert lock["default"]["requests"] == EXTRA


def test_what_only_folders_of_wheels_have_is_named(folder: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("six-1.17.0", "requests-2.0"):
        (wheels / f"{name}-py3-none-any.whl").write_text(name)
    own = {name: f"sha256:{sha256(name.encode()).hexdigest()}" for name in ("six-1.17.0", "requests-2.0")}
    both = {**SHARED, "hashes": [own["six-1.17.0"], f"sha256:{'a' * 64}"]}  # an index has another file of it
    lock = lock_of(default={"six": both, "requests": {**EXTRA, "hashes": [own["requests-2.0"]]}}, jupyter={})
    (folder / "Pipfile.lock").write_text(make_python_lock._dump(lock))
    assert make_python_lock.from_folders_alone(folder, [wheels]) == ("requests 2.0",)
    assert make_python_lock.from_folders_alone(folder, []) == ()


packages = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1", "2", "3"]))


@given(packages, packages)
def test_a_change_leads_from_one_lock_to_the_other(before: dict[str, str], after: dict[str, str]) -> None:
    change = python_lockfile.change(before, after)
    kept = {name: version for name, version in before.items() if name not in change.removed}
    moved = {name: versions[1] for name, versions in change.moved.items()}
    assert {**kept, **moved, **change.added} == after
    assert bool(change) == (before != after)


def test_a_change_in_words() -> None:
    change = python_lockfile.change({"a": "1", "b": "1"}, {"a": "2", "c": "1"})
    assert str(change) == "a 1 → 2, +c 1, -b 1"
    assert str(python_lockfile.change({}, {})) == "nothing moved"


SAID = """\
Locking  dependencies...
✘ Locking Failed!
ERROR: {0}

The conflict is caused by:
    The user requested urllib3==1.20
    requests 2.31.0 depends on urllib3<3 and >=1.21.1
Traceback (most recent call last):
  File "/opt/locker/lib/python3.11/site-packages/pipenv/routines/lock.py", line 435, in do_lock
pipenv.exceptions.ResolutionFailure: ERROR: ERROR: {0}

The conflict is caused by:
    The user requested urllib3==1.20
    requests 2.31.0 depends on urllib3<3 and >=1.21.1
"""


@pytest.mark.parametrize(
    ("problem", "what"),
    [
        ("ResolutionImpossible: for help visit https://pip.pypa.io", "contradict each other"),
        ("No matching distribution found for docopt", "no wheel of docopt"),
    ],
)
def test_a_conflict_is_told_without_the_traceback(folder: Path, problem: str, what: str) -> None:
    error = make_python_lock.explain(read_pipfile(folder / "Pipfile"), SAID.format(problem).splitlines())
    assert error is not None
    assert what in error.what
    assert error.why.splitlines() == [
        "  The user requested urllib3==1.20",
        "  requests 2.31.0 depends on urllib3<3 and >=1.21.1",
    ]
    assert "Traceback" not in str(error)


def test_a_source_that_has_to_be_built_to_be_known_is_told(folder: Path) -> None:
    said = ["Locking ...", "ERROR: Failed to build 'mysqlclient' when getting requirements to build wheel", "Traceback"]
    error = make_python_lock.explain(read_pipfile(folder / "Pipfile"), said)
    assert error and "the source of mysqlclient doesn't tell" in error.what
    assert error.why.startswith("Failed to build 'mysqlclient' when getting requirements to build wheel.")


def test_another_failure_is_not_explained(folder: Path) -> None:
    assert make_python_lock.explain(read_pipfile(folder / "Pipfile"), ["OSError: disk full"]) is None


def test_files_are_written_all_or_none(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    (folder / ".requirements.txt.new").mkdir()  # a draft that can't be written
    with pytest.raises(OSError):
        make_python_lock._write(
            folder, {"requirements-jupyter.txt": "new", "requirements.txt": "new", "Pipfile.lock": "new"}
        )
    (folder / ".requirements.txt.new").rmdir()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_exports_of_categories_that_are_gone_go_too(folder: Path) -> None:
    make_python_lock._write(folder, {"requirements.txt": "", "Pipfile.lock": json.dumps(lock_of())})
    assert sorted(file.name for file in folder.iterdir()) == ["Pipfile", "Pipfile.lock", "requirements.txt"]


def test_what_a_pipfile_asks_for_on_any_machine(folder: Path) -> None:
    pipfile = read_pipfile(folder / "Pipfile")
    assert pipfile.everywhere(("packages",)) == ("requests", "six")
    assert pipfile.everywhere(("packages", "jupyter")) == ("iniconfig", "requests", "six")
    assert pipfile.everywhere(("", "absent")) == ()
