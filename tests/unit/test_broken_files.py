"""Whatever stands in a file that people write: it is read, or named as a mistake with its place. Never a traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows import settings as refit_settings
from flows.catalog import load
from flows.catalog.model import Base
from flows.documents import Mistakes
from flows.images.recipe import Assembler
from flows.lint.catalog import lint
from flows.locks import python
from flows.locks.pipfile import read_pipfile
from tests.machine import ROOT

Spoil = Callable[[bytes], bytes]
ODD = ["\x00", "\ufeff", "\r", "\t", "{{", "{%", "&a [*a]", "? [1, 2]\n: 3\n", "!!python/object:x {}\n", "- ", "é", '"']
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


@st.composite
def spoilt(draw: st.DrawFn) -> Spoil:
    """Another content altogether, or the old one with something cut out, put in, or in another place."""
    if draw(st.booleans()):
        content = draw(
            st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | st.sampled_from(ODD).map(str.encode)
        )
        return lambda _: content
    start, length = draw(st.floats(0, 1)), draw(st.integers(0, 40))
    new = draw(st.binary(max_size=8) | st.sampled_from(ODD).map(str.encode) | st.text(max_size=8).map(str.encode))

    def spoil(old: bytes) -> bytes:
        at = int(start * len(old))
        return old[:at] + new + old[at + length :]

    return spoil


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
    """What reading says while a file has another content."""
    before = file.read_bytes()
    file.write_bytes(spoil(before))
    try:
        read()
    except Mistakes as mistakes:
        return mistakes
    finally:
        file.write_bytes(before)
    return None


@pytest.mark.parametrize("path", FILES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=spoilt())
def test_a_catalog_is_loaded_or_its_mistakes_are_named(root: Path, path: str, spoil: Spoil) -> None:
    found = tried(root / path, spoil, lambda: load.load_catalog(root))
    for mistake in found.mistakes if found else ():
        assert mistake.file.is_relative_to(root) and mistake.line >= 0 and mistake.what


@pytest.mark.parametrize("name", ["Pipfile", "Pipfile.lock", "requirements.txt"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=spoilt())
def test_a_lock_is_verified_or_its_mistakes_are_named(root: Path, name: str, spoil: Spoil) -> None:
    folder = root / "bundles/1-minimal/py311"

    def read() -> None:
        read_pipfile(folder / "Pipfile")
        python.verify(folder)
        python.locked(folder)

    found = tried(folder / name, spoil, read)
    for mistake in found.mistakes if found else ():
        assert mistake.file.parent == folder and mistake.what


@pytest.mark.parametrize(
    "path", ["snippets/shell.j2", "ides/2-runtime/runtime.snippet.j2", "ides/1-jupyter/files/start-jupyter"]
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoil=spoilt())
def test_lint_reads_any_template_and_script(root: Path, path: str, spoil: Spoil) -> None:
    tried(root / path, spoil, lambda: lint(root, date(2026, 11, 21)))


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
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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

    found = tried(root / path, spoil, read)
    for mistake in found.mistakes if found else ():
        assert mistake.file.is_relative_to(root) and mistake.line >= 0 and mistake.what


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
