"""Files that people write, with any content: each is read, or named as a mistake with its place. Never a traceback."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.authoring.lint.catalog import lint
from flows.catalog import load
from flows.catalog.model import Base
from flows.core import settings as refit_settings
from flows.core.documents import Mistakes
from flows.core.errors import UnknownName
from flows.images.recipe import Assembler
from flows.locks import python_lockfile
from flows.locks.pipfile import as_text, read_pipfile
from tests.support.examples import several
from tests.support.machine import ROOT
from tests.support.spoiling import ODD, Spoil, spoilt

RELEASE = """\
release: 2026a
nightly: "0 2 * * *"
supported_until: 2027-12-31
profiles:
  - {ide: runtime, bundle: minimal, os: deb12, python: py311, size_budget: 450 MB}
reach: {certifi: any}
exceptions:
  - {package: urllib3, range: ">=2.7", reason: CVE, expires: 2027-01-31}
"""
FIRST = '{"bundles": {"minimal": {"py311": {"packages": {"six": "1.17.0"}}}}}'


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small catalog that has a file of each kind."""
    folder = tmp_path_factory.mktemp("broken")
    for part in (
        "base/deb12",
        "base/deb13",
        "base/c9s",
        "base/cuda",
        "bundles/1-minimal",
        "bundles/2-datascience",
        "bundles/8-r",
        "bundles/9-spark",
        "ides/1-jupyter",
        "ides/2-runtime",
        "ides/3-terminal",
        "ides/5-rstudio",
        "snippets",
    ):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "releases").mkdir()
    (folder / "releases" / "2026a.yaml").write_text(RELEASE)
    (folder / "releases" / "2026a.lock").write_text(FIRST)
    return folder


# Values where something else is asked for. TOML has no null, and JSON no days.
OTHERS = st.sampled_from([5, 2.5, True, "", "x y", "==1 ; zz", [], ["x"], [5], {}, {"a": 5}, [{"a": "b"}]])
DAY = date(2026, 1, 31)


@st.composite
def retyped(draw: st.DrawFn) -> Spoil:
    """The old content with another value, of another type for the most part, in the place of one of its values."""
    where, key, others = draw(st.floats(0, 1)), draw(st.sampled_from(["", "x", "extras", "markers"])), draw(OTHERS)

    def spoil(old: bytes) -> bytes:
        data, write = understood(old.decode())
        new = DAY if others == 2.5 and write is not json.dumps else others
        places = list(values_of(data))
        values, name = places[min(int(where * len(places)), len(places) - 1)]
        if key and isinstance(values, dict):
            values[key] = new
        else:
            values[name] = new
        return write(data).encode()

    return spoil


def understood(text: str) -> tuple[Any, Callable[[Any], str]]:
    """A file of JSON, TOML or YAML as plain data, and what writes that back."""
    for read, write in ((json.loads, json.dumps), (tomllib.loads, toml)):
        with suppress(ValueError):
            return read(text), write
    return yaml.safe_load(text), yaml.safe_dump


def toml(data: Any) -> str:
    """Plain data as TOML, a line for each key at the top."""

    def written(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {written(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(written, value)) + "]"
        return value.isoformat() if isinstance(value, date) else json.dumps(value)

    return "".join(f"{json.dumps(key)} = {written(value)}\n" for key, value in data.items())


def values_of(data: Any) -> Iterator[tuple[Any, Any]]:
    """Each value below, as what it stands in and its key there."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        yield data, key
        if isinstance(value, dict | list):
            yield from values_of(value)


FILES = [
    "base/deb12/base.yaml",
    "base/c9s/base.yaml",
    "base/c9s/os-packages.txt",
    "base/cuda/cuda.yaml",
    "base/deb12/os-packages.txt",
    "base/deb12/display.txt",
    "bundles/1-minimal/display.txt",
    "bundles/1-minimal/py311/Pipfile",
    "bundles/2-datascience/bundle.yaml",
    "bundles/2-datascience/py311/Pipfile",
    "bundles/8-r/os/os-packages.txt",
    "bundles/9-spark/builder/sources.txt",
    "ides/1-jupyter/display.txt",
    "ides/1-jupyter/ide.yaml",
    "ides/5-rstudio/ide.yaml",
    "ides/5-rstudio/os/os-packages.txt",
    "ides/3-terminal/npm/package-lock.json",
    "ides/3-terminal/npm/package.json",
    "releases/2026a.yaml",
    "releases/2026a.lock",
]


def tried(file: Path, spoil: Spoil, read: Callable[[], object]) -> Mistakes | None:
    """The mistakes of reading while a file has another content: always with a line, where there are any."""
    before = file.read_bytes()
    file.write_bytes(spoil(before))
    try:
        read()
    except Mistakes as mistakes:
        for mistake in mistakes.mistakes:
            assert mistake.line or not mistake.file.is_file() or not mistake.file.read_bytes().strip(), mistake
        return mistakes
    finally:
        file.write_bytes(before)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES)
@settings(max_examples=several(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=spoilt())
def test_a_catalog_is_loaded_or_its_mistakes_are_named(root: Path, path: str, spoil: Spoil) -> None:
    catalog = tried(root / path, spoil, lambda: load.load_catalog(root))
    for mistake in catalog.mistakes if catalog else ():
        assert mistake.file.is_relative_to(root) and mistake.line >= 0 and mistake.what


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in FILES if Path(path).suffix != ".txt"])
@settings(max_examples=several(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=retyped())
def test_a_value_of_another_type_is_read_or_named(root: Path, path: str, spoil: Spoil) -> None:
    catalog = tried(root / path, spoil, lambda: load.load_catalog(root))
    for mistake in catalog.mistakes if catalog else ():
        assert mistake.file.is_relative_to(root) and mistake.what


@pytest.mark.parametrize("name", ["Pipfile", "Pipfile.lock", "requirements.txt"])
@settings(max_examples=several(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=spoilt())
def test_a_lock_is_verified_or_its_mistakes_are_named(root: Path, name: str, spoil: Spoil) -> None:
    verified(root / "bundles/1-minimal/py311", name, spoil)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Pipfile", "Pipfile.lock"])
@settings(max_examples=several(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=retyped())
def test_a_lock_with_a_value_of_another_type_is_verified_or_it_is_named(root: Path, name: str, spoil: Spoil) -> None:
    verified(root / "bundles/1-minimal/py311", name, spoil)


def verified(folder: Path, name: str, spoil: Spoil) -> None:
    """Look whether a lock fits while one of its files has another content."""

    def read() -> None:
        python_lockfile.locked(folder)
        as_text(read_pipfile(folder / "Pipfile").data)
        with suppress(UnknownName):  # a category that only the Pipfile has
            python_lockfile.verify(folder)

    result = tried(folder / name, spoil, read)
    for mistake in result.mistakes if result else ():
        assert mistake.file.parent == folder and mistake.what


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("packages = 5\n", 1, "packages: this is not a table of packages"),
        ('[packages]\nsix = "*"\n[requires]\npython_version = 3.11\n', 4, "python_version: this has no type"),
        ("[packages]\n\nsix = {version = 5}\n", 3, "six: this has no type"),
        ("[packages.six]\nversion = 2026-01-31\n", 1, "six: this has no type"),
        ('[packages]\nsix = {version = "*", markers = "zz"}\n', 2, "six: "),
        ('[[source]]\nname = "a"\nurl = "http://[::1"\n', 3, "source: this is not a URL"),
        ('[[source]]\nname = ["a"]\nurl = "x"\n', 1, "source: each needs a name and a url"),
    ],
)
def test_a_value_that_is_none_in_a_pipfile_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, what: str
) -> None:
    (tmp_path / "Pipfile").write_text(text)
    with pytest.raises(Mistakes) as caught:
        read_pipfile(tmp_path / "Pipfile")
    [mistake] = caught.value.mistakes
    assert mistake.line == line and mistake.what.startswith(what)


@pytest.mark.parametrize(
    ("spoil", "line", "what"),
    [
        ({"_meta": 5}, 2, "_meta: "),
        ({"default": 5}, 6, "default: "),
        ({"default": {"six": {"version": 5}}}, 8, "default.six.version: "),
        ({"default": {"six": {"version": "==abc"}}}, 7, "six of [default]: "),
        ({"default": {"six": {"version": "==1", "markers": "zz"}}}, 7, "six of [default]: "),
    ],
)
def test_a_value_that_is_none_in_a_lock_is_named_with_its_line(
    tmp_path: Path, spoil: dict[str, object], line: int, what: str
) -> None:
    (tmp_path / "Pipfile").write_text('[packages]\nsix = "*"\n')
    lock = {"_meta": {"hash": {}, "sources": []}, "default": {}, **spoil}
    (tmp_path / "Pipfile.lock").write_text(json.dumps(lock, indent=1))
    with pytest.raises(Mistakes) as caught:
        python_lockfile.verify(tmp_path)
    mistake = caught.value.mistakes[0]
    assert mistake.line == line and mistake.what.startswith(what)


@pytest.mark.parametrize("name", ["2026b.yml", "2025z.lock"])
def test_a_file_beside_the_releases_that_nothing_reads_is_named(root: Path, name: str) -> None:
    stray = root / "releases" / name
    stray.write_text("x\n")
    try:
        with pytest.raises(Mistakes, match="nothing reads this"):
            load.load_catalog(root)
    finally:
        stray.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["snippets/shell.j2", "ides/2-runtime/runtime.snippet.j2", "ides/1-jupyter/files/start-jupyter"]
)
@settings(max_examples=several(5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=spoilt())
def test_lint_reads_any_template_and_script(root: Path, path: str, spoil: Spoil) -> None:
    tried(root / path, spoil, lambda: lint(root, date(2026, 11, 21)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bundle", "path"),
    [
        ("minimal", "base/cuda/cuda.snippet.j2"),
        ("minimal", "base/cuda/locks/runtime.txt"),
        ("minimal", "snippets/node/requirements.txt"),
        ("minimal", "snippets/packages.j2"),
        ("r", "bundles/8-r/builder/environment.txt"),
        ("r", "bundles/8-r/custom/custom.snippet.j2"),
        ("spark", "bundles/9-spark/builder/sources.txt"),
        ("spark", "snippets/wheels.snippet.j2"),
    ],
)
@settings(max_examples=several(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=spoilt())
def test_an_image_is_rendered_or_mistakes_are_named(root: Path, bundle: str, path: str, spoil: Spoil) -> None:
    catalog = load.load_catalog(root)
    first = catalog.releases["2026a"].profiles[0]
    more = {"ide": catalog.ides["terminal"], "cuda_level": "devel"}
    profile = replace(first, bundle=catalog.bundles[bundle], **more)

    def read() -> None:
        def system(base: Base) -> tuple[str, ...]:
            return tuple(f"{name}=1" for name in base.packages)

        Assembler(catalog, system).chain(profile)

    result = tried(root / path, spoil, read)
    for mistake in result.mistakes if result else ():
        assert mistake.file.is_relative_to(root) and mistake.line >= 0 and mistake.what


@settings(max_examples=several(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=100) | st.sampled_from(ODD).map(str.encode) | st.text(max_size=100).map(str.encode))
def test_settings_are_read_or_their_mistakes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setenv("REFIT_HOME", str(tmp_path))
    (tmp_path / "settings.yaml").write_bytes(content)
    try:
        refit_settings.load()
    except Mistakes as mistakes:
        assert all(mistake.what for mistake in mistakes.mistakes)
