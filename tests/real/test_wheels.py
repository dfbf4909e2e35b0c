"""Packages that have no wheel: built once with locked tools, installed by hash, and found again after a patch."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from flows.catalog import load
from flows.core.settings import Settings
from flows.host import containers
from flows.images import containerfile_export, stages
from flows.images.build import Builder, Built
from flows.images.builder.stage_builder import StageBuilder
from flows.images.plan import Action
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage
from flows.locks import make_python_lock, system
from flows.locks.pipfile import read_pipfile
from flows.locks.python_lockfile import exports
from tests.support.machine import ROOT
from tests.support.package_index import EXTENSION, make_sdist, make_wheel, serve_index
from tests.support.plain_builds import Build, build, differing

__all__ = ["build"]  # a fixture

PROFILE = "runtime-chopping-deb12-py311"
RELEASE = """\
release: 2026a
profiles:
  - {ide: runtime, bundle: chopping, os: deb12, python: py311}
"""
PIPFILE = """\
[[source]]
name = "pypi"
url = "https://pypi.org/simple"
verify_ssl = true

[packages]
chopper = "*"
bee = "*"

[builder]
ant = "*"

[requires]
python_version = "3.11"
"""


@dataclass(frozen=True)
class Case:
    """A base with a bundle's system package, its Python stage, also by pip, that has a source, and what builds them."""

    ground: Built
    python: Stage
    by_pip: Stage
    builder: Builder
    settings: Settings

    @property
    def wheels(self) -> Stage:
        assert self.python.wheels
        return self.python.wheels


def write_catalog(root: Path, index: Path) -> None:
    """A catalog of one profile, whose bundle is locked to what is in an index."""
    for part in ("base/deb12", "ides/2-runtime", "snippets"):
        shutil.copytree(ROOT / part, root / part)
    bundle = root / "bundles/1-chopping"
    files = {
        root / "releases/2026a.yaml": RELEASE,
        bundle / "display.txt": "Chopping\n",
        bundle / "os/os-packages.txt": "hello\n",
        bundle / "builder/os-packages.txt": "gcc\nlibc6-dev\nlibpython3.11-dev\n",
        bundle / "builder/sources.txt": "chopper  # has no wheel\n",
        bundle / "py311/Pipfile": PIPFILE,
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    pipfile = read_pipfile(bundle / "py311/Pipfile")
    meta = {"hash": {"sha256": pipfile.digest}, "sources": list(pipfile.sources)}
    first = {name: entry(index / name) for name in ("bee", "chopper")}
    lock = {"_meta": meta, "default": first, "builder": {"ant": entry(index / "ant")}}
    make_python_lock._write(bundle / "py311", {**exports(lock, pipfile), "Pipfile.lock": json.dumps(lock)})


def entry(package: Path) -> dict[str, object]:
    (file,) = package.iterdir()
    return {"version": "==1.0", "hashes": [f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"]}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, shared: Settings, registry: Registry, base: Built) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("chopping")
    for name in ("ant", "bee"):
        make_wheel(folder / "index" / name, name, "1.0")
    make_sdist(folder / "index/chopper", "chopper", "1.0", EXTENSION)
    write_catalog(folder / "catalog", folder / "index")
    catalog = load.load_catalog(folder / "catalog")
    with serve_index(folder / "index") as url:
        settings = shared.model_copy(update={"pip_index_url": SecretStr(url)})
        resolve = partial(system.resolve, settings=settings)
        profile = load.profile(catalog, "2026a", PROFILE)
        chains = (Assembler(catalog, resolve, installer).chain(profile) for installer in ("uv", "pip"))
        (_, packages, python, *_), (_, _, by_pip, *_) = chains
        builder = Builder(settings, registry)
        yield Case(builder.build(packages, base), python, by_pip, builder, settings)


def patched(case: Case) -> Built:
    """Another base."""
    text = "RUN . /mnt/env.sh; set -eu; umask 022; echo patched > /etc/patched"
    return case.builder.build(Stage("patched", Kind.instructions, case.ground.stage, text), case.ground)


def run(case: Case, built: Built, script: str) -> str:
    image = f"docker://{case.settings.registry_host}/{case.settings.repository}/stages@{built.digest}"
    return containers.run_once(case.settings, image, ["sh", "-euc", script]).stdout


def test_a_source_becomes_a_wheel_once_and_its_tools_stay_out_of_the_image(case: Case) -> None:
    graph = stages.join({"it": (replace(case.python, parent=None),)})
    before = case.builder.plan(graph).steps
    assert {name: step.action for name, step in before.items()} == {
        case.wheels.name: Action.build,
        case.python.name: Action.build,
    }
    first = case.builder.build(case.python, case.ground)
    assert first.how == "built"
    said = run(
        case, first, "/opt/app-root/bin/python -c 'import bee, chopper; print(chopper.answer())'; find / -xdev || :"
    )
    answer, *paths = said.splitlines()
    assert answer == "42"
    assert "/opt/app-root/lib/python3.11/site-packages/chopper.so" in paths
    forbidden = (
        r"/(wheels|tmp|mnt|opt/builder)/.*|/usr/bin/gcc|.*/(ant\.py|Python\.h|uv_cache\.json|chopper-1\.0-[^/]*)"
    )
    assert not [path for path in paths if re.fullmatch(forbidden, path)]

    assert case.builder.build(case.wheels, case.ground).how == "reused"
    after = patched(case)
    assert case.builder.build(case.wheels, after).how == "reused"
    assert case.builder.build(case.python, after).how == "grafted"
    # A build that makes the layer anew takes the same wheels.
    more = replace(case.python, text=f"{case.python.text}RUN true\n")
    steps = case.builder.plan(stages.join({"it": (replace(more, parent=None),)})).steps
    assert [step.action for step in steps.values()] == [Action.reuse, Action.build]


@pytest.mark.long
def test_pip_builds_and_installs_them_as_well(case: Case) -> None:
    built = case.builder.build(case.by_pip, case.ground)
    assert run(case, built, "/opt/app-root/bin/python -c 'import bee, chopper; print(chopper.answer())'") == "42\n"


@pytest.mark.long
def test_two_builds_in_a_row_are_equal(case: Case, registry: Registry, tmp_path: Path) -> None:
    maker = StageBuilder(case.settings, registry)
    one, two = (maker.make(case.wheels, case.ground.digest, tmp_path / f"log{n}").digest for n in range(2))
    assert one == two
    built = case.builder.build(case.python, case.ground)
    assert case.builder.compare(case.python, case.ground, built) == ()


@pytest.mark.long
def test_a_plain_text_builds_the_wheels_as_well(
    case: Case, base_stage: Stage, build: Build, registry: Registry
) -> None:
    built = case.builder.build(case.python, case.ground)
    image = f"{registry.host}/{registry.stages}@{case.ground.digest}"
    text = containerfile_export.containerfile(
        PROFILE, "2026a", (base_stage, case.python), image, secure=registry.secure
    )
    digest = build(text, case.settings.pip_index_url.get_secret_value())
    assert differing(case.settings, registry, built.digest, digest) == set()
