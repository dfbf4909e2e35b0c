"""A company's mirror, authority and proxy: packages come by them, and nothing of them is in what is built."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from flows.catalog import load
from flows.catalog.model import Base, Catalog
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Stage
from flows.locks import apt, system
from tests.support.certificates import Authority, make_authority
from tests.support.machine import private_home
from tests.support.mirror import Way, way_to_debian
from tests.support.waiting import some_long

NOBODY = 65_534


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def mirror(authority: Authority) -> Iterator[Way]:
    with way_to_debian(authority) as way:
        yield way


@pytest.fixture(scope="module")
def proxy() -> Iterator[Way]:
    with way_to_debian() as way:
        yield way


@pytest.fixture
def mirrored(mirror: Way, authority: Authority) -> dict[str, object]:
    """The settings of a company that has a mirror and signs its certificate itself."""
    return {"debian_mirror": mirror.url, "ca_bundle": authority.bundle}


@pytest.fixture
def proxied(proxy: Way) -> dict[str, object]:
    """The settings of a company whose machines get out by a proxy."""
    return {"apt_proxy": proxy.url, "npm_registry": "https://npm.example", "ca_bundle": None}


@contextmanager
def elsewhere(folder: Path, base: Built, registry: Registry, **chosen: object) -> Iterator[Builder]:
    """Another machine with these settings; only the base is there already."""
    port = int(registry.host.rpartition(":")[2])
    with private_home(folder, port, repository=folder.parent.name.lower().replace("_", "-"), **chosen) as settings:
        there = Registry(settings)
        manifest = registry.manifest(registry.stages, base.digest)
        for part in (manifest.document["config"], *manifest.document["layers"]):
            there.mount(there.stages, part["digest"], registry.stages, part["size"])
        there.put_manifest(there.stages, base.key, manifest.content, manifest.media_type)
        yield Builder(settings, there)


@pytest.fixture(scope="module")
def additional(catalog: Catalog, shared: Settings) -> Stage:
    """The stage of a bundle that has `file`, which needs more packages, on top of the base."""
    profile = load.profile(catalog, "2026a", "jupyter-minimal-deb12-py311")
    wanting = replace(profile, bundle=replace(profile.bundle, packages=("file",)))
    stage = Assembler(catalog, partial(system.resolve, settings=shared)).chain(wanting)[1]
    assert {package.partition("=")[0] for package in stage.system} == {"file", "libmagic-mgc", "libmagic1"}
    return stage


@pytest.mark.long
def test_a_mirror_by_https_with_an_authority_of_its_own(
    base_recipe: Base, shared: Settings, mirrored: dict[str, object], mirror: Way, tmp_path: Path
) -> None:
    small = replace(base_recipe, packages=("tmux",))
    there = shared.model_copy(update={**mirrored, "home": tmp_path})
    assert system.resolve(small, there) == system.resolve(small, shared)
    assert any(url.endswith("/InRelease") for url in mirror.asked)
    unknown = there.model_copy(update={"ca_bundle": None, "home": tmp_path / "another"})
    with pytest.raises(RefitError, match="mirror doesn't answer") as caught:
        system.resolve(small, unknown)
    assert "ca_bundle" in caught.value.hint
    with pytest.raises(RefitError, match="mirror doesn't answer"):
        apt.simulate(small, unknown)


def test_who_is_not_root_resolves_the_same_packages(
    base_recipe: Base, shared: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(base_recipe, packages=("python3", "tmux"))
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    argv = apt.simulation(small, "-", [])
    monkeypatch.undo()
    as_nobody = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--no-new-privs", "--"]
    lines = apt.sources(small.config.suite, shared.debian_mirror)
    done = command.run([*as_nobody, *argv], stdin=lines, env={"HOME": "/nowhere", "TMPDIR": "/tmp"})
    packages = apt.planned(done.stdout + done.stderr)
    assert packages == system.resolve(small, shared) and len(packages) > 50


@pytest.mark.parametrize("way", some_long(["mirror", "proxy"], "mirror"))
def test_a_bundles_own_packages_come_by_it_and_the_digest_is_the_same(
    way: str, request: pytest.FixtureRequest, tmp_path: Path, builder: Builder, base: Built, additional: Stage
) -> None:
    registry = request.getfixturevalue("registry")
    built = builder.build(additional, base)
    chosen = request.getfixturevalue("mirrored" if way == "mirror" else "proxied")
    with elsewhere(tmp_path / "home", base, registry, **chosen) as there:
        again = there.build(additional, base)
    assert not again.reused
    assert again.digest == built.digest
    asked: Way = request.getfixturevalue(way)
    assert any("/file_" in url for url in asked.asked)


def test_packages_that_were_not_resolved_are_found_after_the_build(
    builder: Builder, base: Built, additional: Stage
) -> None:
    [alone] = [package for package in additional.system if package.startswith("file=")]
    whole = " ".join(additional.system)
    stage = replace(additional, name="unlike", system=(alone,), text=additional.text.replace(whole, alone))
    with pytest.raises(RefitError, match="'unlike' are not those that were resolved") as caught:
        builder.build(stage, base)
    assert "libmagic1=" in caught.value.why


@pytest.mark.long
def test_a_base_that_came_by_a_mirror_is_the_same(
    mirrored: dict[str, object],
    registry: Registry,
    tmp_path: Path,
    base: Built,
    base_stage: Stage,
    mirror: Way,
) -> None:
    port = int(registry.host.rpartition(":")[2])
    with private_home(tmp_path / "home", port, repository="mirrored", **mirrored) as settings:
        built = Builder(settings, Registry(settings)).build(base_stage, None)
    assert not built.reused
    assert built.digest == base.digest
    assert any(url.endswith(".deb") for url in mirror.asked)
