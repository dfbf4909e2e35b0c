"""Exact packages of rpm, by Debian's own dnf from a repository of one's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from flows.catalog.model import Base, BaseConfig, Catalog
from flows.catalog.model import Repository as Source
from flows.core.errors import RefitError, Vanished
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images import stages
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage
from flows.locks import system
from flows.publishing import evidence, installed, probe
from tests.support.rpms import Repository, serve_repository
from tests.support.waiting import free_port

pytestmark = pytest.mark.long
KEY_FILE = "/etc/pki/key.asc"
LONG_NAME = "library-with-a-name-that-is-longer-than-any-terminal-is-wide-so-that-a-table-would-have-to-break-it"


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    """An editor that needs a library with a long name, and another version of it."""
    with serve_repository(tmp_path / "repository") as repository:
        repository.publish("editor", "1.0", requires=LONG_NAME, epoch=2)
        repository.publish(LONG_NAME, "3.1")
        repository.publish("unwanted", "1.0")
        repository.refresh()
        yield repository


def base_on(url: str, *packages: str) -> Base:
    source = {"baseurl": url, "gpgkey": "/etc/pki/key", "fingerprint": "A" * 40}
    config = BaseConfig.model_validate(
        {
            "family": "rpm",
            "suite": "9-stream",
            "platform": "el9",
            "pythons": ["py311"],
            "image": f"example.org/os@sha256:{'0' * 64}",
            "repositories": {"main": source},
        }
    )
    return Base("c9s", Path("base/c9s"), "A system", config, packages)


def key(exact: tuple[str, ...]) -> str:
    return stages.key(Stage("base", Kind.instructions, None, "", system=exact), None, {})


def test_the_whole_transaction_is_exact_and_resolved_once(
    repository: Repository, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refit.command")
    base = base_on(repository.url, "editor")
    exact = system.resolve(base, settings)
    assert exact == ("editor=2:1.0-1.el9.noarch", f"{LONG_NAME}=0:3.1-1.el9.noarch")
    caplog.clear()
    assert system.resolve(base, settings) == exact
    assert caplog.messages == []


def test_what_is_installed_is_read_as_it_is_locked(repository: Repository, settings: Settings, tmp_path: Path) -> None:
    exact = system.resolve(base_on(repository.url, "editor"), settings)
    stage = Stage("base", Kind.instructions, None, "", system=exact, suite="9-stream", family="rpm")
    root, files = tmp_path / "root", evidence.of_stages((stage,))
    (root / "var/lib/rpm").mkdir(parents=True)
    install = ["rpm", "--root", root, "--dbpath", "/var/lib/rpm", "--install", "--justdb"]
    command.run([*install, *repository.folder.rglob("*.rpm")], root=True)
    findings = probe.files({}, str(root))["packages"]
    assert installed.finding(files, findings).seen == "rpm/unwanted 0:1.0-1.el9.noarch is in no lock"
    [*_, last] = json.loads(installed.completed(files, findings)[evidence.SBOM])["components"]
    assert (last["name"], last["properties"][0]["name"]) == ("unwanted", "io.refit.found")


def test_a_new_version_is_another_lock_with_another_key(repository: Repository, settings: Settings) -> None:
    base = base_on(repository.url, "editor")
    before = system.resolve(base, settings)
    repository.publish("editor", "1.1", requires=LONG_NAME, epoch=2)
    repository.refresh()
    after = system.resolve(base, settings)
    assert after == ("editor=2:1.1-1.el9.noarch", f"{LONG_NAME}=0:3.1-1.el9.noarch")
    assert key(after) != key(before)


def test_a_version_that_has_gone_is_resolved_anew(repository: Repository, settings: Settings) -> None:
    base = base_on(repository.url, "editor")
    repository.publish("editor", "1.1", requires=LONG_NAME, epoch=2)
    repository.refresh()
    assert "editor=2:1.1-1.el9.noarch" in system.resolve(base, settings)
    repository.remove("editor", "1.1")
    repository.refresh()
    assert "editor=2:1.0-1.el9.noarch" in system.resolve(base, settings)


def test_an_index_that_says_nothing_new_changes_no_key(repository: Repository, settings: Settings) -> None:
    base = base_on(repository.url, "editor")
    before = system.resolve(base, settings)
    repository.publish("unwanted", "2.0")
    repository.refresh()
    assert key(system.resolve(base, settings)) == key(before)


def test_packages_that_do_not_exist_are_named(repository: Repository, settings: Settings) -> None:
    with pytest.raises(RefitError, match="9-stream has no package 'nonesuch', 'nothing'") as caught:
        system.resolve(base_on(repository.url, "nonesuch", "editor", "nothing"), settings)
    assert "os-packages.txt" in caught.value.hint


def test_what_a_package_needs_and_nobody_has_is_said(repository: Repository, settings: Settings) -> None:
    repository.remove(LONG_NAME, "3.1")
    repository.refresh()
    with pytest.raises(RefitError, match="can't be resolved") as caught:
        system.resolve(base_on(repository.url, "editor"), settings)
    assert f"nothing provides {LONG_NAME}" in caught.value.why


@pytest.mark.parametrize("spoil", ["down", "no repository"])
def test_a_mirror_that_is_none_is_said(spoil: str, repository: Repository, settings: Settings) -> None:
    url = f"http://127.0.0.1:{free_port()}/" if spoil == "down" else f"{repository.url}nowhere/"
    with pytest.raises(RefitError, match="mirror of 'c9s' doesn't answer") as caught:
        system.resolve(base_on(url, "editor"), settings)
    assert url in caught.value.why
    assert "base.yaml" in caught.value.hint


def test_lists_that_are_lost_are_said(repository: Repository, settings: Settings) -> None:
    for path in (repository.folder / "repodata").glob("*primary*"):
        path.unlink()
    with pytest.raises(RefitError, match="mirror of 'c9s' doesn't answer"):
        system.resolve(base_on(repository.url, "editor"), settings)


def test_an_empty_request_needs_no_program(repository: Repository, settings: Settings) -> None:
    assert system.resolve(replace(base_on(repository.url, "editor"), packages=()), settings) == ()


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """A repository whose packages are signed."""
    with serve_repository(tmp_path_factory.mktemp("signed")) as repository:
        repository.make_key()
        repository.publish("library", "3.1")
        repository.publish("editor", "1.0", requires="library", epoch=2)
        repository.refresh()
        yield repository


@pytest.fixture(scope="module")
def public_image(signed: Repository, builder: Builder, base: Built, registry: Registry) -> str:
    """An image with dnf and the repository's key, in the place of a public one that can't be reached from here."""
    install = "apt-get update -q; apt-get install -q -y --no-install-recommends dnf rpm gpg"
    text = f"RUN . /mnt/env.sh; set -eu; {install}\nCOPY files/key.asc {KEY_FILE}\n"
    files = {"files/key.asc": (signed.folder / "key.asc").read_bytes()}
    built = builder.build(Stage("public", Kind.instructions, base.stage, text, files, suite="bookworm"), base)
    return f"{registry.host}/{registry.stages}@{built.digest}"


def foundation(catalog: Catalog, image: str, repository: Repository, settings: Settings, **more: str) -> Stage:
    """The stage of the catalog's base for rpm on that image, with packages of that repository."""
    source = {"baseurl": repository.url, "gpgkey": KEY_FILE, "fingerprint": repository.key, **more}
    base = base_on(repository.url, "editor")
    config = base.config.model_copy(update={"image": image, "repositories": {"main": Source.model_validate(source)}})
    own = replace(catalog.bases["c9s"], config=config, packages=base.packages)
    return Assembler(catalog, partial(system.resolve, settings=settings)).foundation(own, "py311")


def test_a_base_gets_exactly_what_was_resolved_and_a_version_that_has_gone_is_resolved_anew(
    catalog: Catalog, public_image: str, signed: Repository, builder: Builder, shared: Settings, registry: Registry
) -> None:
    signed.publish("editor", "1.1", requires="library", epoch=2)
    signed.refresh()
    gone = foundation(catalog, public_image, signed, shared)
    assert gone.system == ("editor=2:1.1-1.el9.noarch", "library=0:3.1-1.el9.noarch")
    signed.remove("editor", "1.1")
    signed.refresh()
    with pytest.raises(Vanished, match="no longer what stage 'base-c9s-py311' was resolved to") as caught:
        builder.build(gone, None)
    assert caught.value.why == "editor-2:1.1-1.el9.noarch"
    assert "resolves them anew" in caught.value.hint

    stage = foundation(catalog, public_image, signed, shared)
    built = builder.build(stage, None)
    assert stage.system == ("editor=2:1.0-1.el9.noarch", "library=0:3.1-1.el9.noarch")
    assert builder.build(stage, None).reused
    image = f"docker://{registry.host}/{registry.stages}@{built.digest}"
    query = ["rpm", "-q", "--queryformat", "%{NAME}-%{VERSION} ", "editor", "library"]
    argv = [*tools.podman(shared), "run", "--rm", "--tls-verify=false", *tools.run_limits(shared), image, *query]
    assert command.run(argv, root=True).stdout == "editor-1.0 library-3.1 "


def test_what_one_build_has_downloaded_the_next_need_not(
    catalog: Catalog, public_image: str, signed: Repository, builder: Builder, shared: Settings
) -> None:
    stage = foundation(catalog, public_image, signed, shared)
    builder.build(stage, None)
    packages = list(signed.folder.rglob("*.rpm"))
    contents = {package: package.read_bytes() for package in packages}
    for package in packages:
        package.unlink()
    try:
        again = replace(stage, text=f"{stage.text}RUN test ! -e /var/cache/dnf\n", name="again")
        assert builder.build(again, None).how == "built"
    finally:
        for package, content in contents.items():
            package.write_bytes(content)


def test_a_public_image_that_is_not_reached_is_said(
    catalog: Catalog, signed: Repository, builder: Builder, shared: Settings
) -> None:
    place = f"127.0.0.1:{free_port()}"
    stage = foundation(catalog, f"{place}/os@sha256:{'0' * 64}", signed, shared)
    with pytest.raises(RefitError, match="public image of stage 'base-c9s-py311' can't be had") as caught:
        builder.build(stage, None)
    assert f"check that {place} is reached" in caught.value.hint


def test_a_key_that_is_not_the_recipes_is_refused(
    catalog: Catalog, public_image: str, signed: Repository, builder: Builder, shared: Settings
) -> None:
    stage = foundation(catalog, public_image, signed, shared, fingerprint="0" * 40)
    with pytest.raises(RefitError, match="can't be built") as caught:
        builder.build(stage, None)
    assert f"{KEY_FILE} holds the key {signed.key}, not {'0' * 40}" in caught.value.why


def test_a_package_that_nobody_signed_is_refused(
    catalog: Catalog, public_image: str, signed: Repository, builder: Builder, shared: Settings, tmp_path: Path
) -> None:
    with serve_repository(tmp_path / "unsigned") as unsigned:
        unsigned.publish("editor", "6.6")
        unsigned.refresh()
        unsigned.key = signed.key
        stage = foundation(catalog, public_image, unsigned, shared)
        with pytest.raises(RefitError, match="can't be built") as caught:
            builder.build(stage, None)
    assert "is not signed" in caught.value.why


def test_more_than_was_resolved_is_refused(
    catalog: Catalog, public_image: str, signed: Repository, builder: Builder, shared: Settings
) -> None:
    stage = foundation(catalog, public_image, signed, shared)
    library = next(package for package in stage.system if package.startswith("library="))
    text = stage.text.replace(f" {library}", "").replace(f" {library.replace('=', '-', 1)}", "")
    with pytest.raises(RefitError, match="are not those that were resolved") as caught:
        builder.build(replace(stage, text=text, name="unlike"), None)
    assert library in caught.value.why
