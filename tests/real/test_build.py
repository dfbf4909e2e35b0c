"""Real stages: bootstrapped and by instructions, found again, the same everywhere, and clean after failures."""

from __future__ import annotations

import logging
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from flows.catalog.model import Base
from flows.core import progress
from flows.core.errors import RefitError
from flows.core.programs import command, process_records
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Builder, Built
from flows.images.builder.workspace import recover
from flows.images.plan import Action
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.images.stages import Kind, Stage, join
from flows.locks import apt
from tests.support.leftovers import assert_clean, sleepers, working_containers
from tests.support.machine import RegistryServer, build_all, private_home, serve_registry
from tests.support.waiting import PATIENCE, free_port, wait_until


def tiny(content: bytes = b"hello") -> Stage:
    """A stage that needs no base."""
    return Stage("tiny", Kind.instructions, None, "COPY files/hello /hello", {"files/hello": content})


def instructions(text: str) -> Stage:
    """A stage on the base."""
    return Stage("child", Kind.instructions, "base-deb12", text)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, registry_server: RegistryServer) -> Iterator[Settings]:
    """Another machine: cold storage, a part of the registry where nothing is, other settings."""
    wheels = tmp_path_factory.mktemp("wheels")
    own = {"repository": "elsewhere", "ca_bundle": None, "wheel_folders": (wheels,), "apt_proxy": ""}
    index = SecretStr("https://ann:hidden@index.example/simple")
    folder = tmp_path_factory.mktemp("elsewhere") / "home"
    with private_home(folder, registry_server.port, pip_index_url=index, **own) as settings:
        yield settings


def test_a_stage_is_found_again_without_starting_anything(
    builder: Builder, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refit.command")
    built = builder.build(tiny(), None)
    assert not built.reused
    assert built.digest == registry.digest(registry.stages, built.key)
    assert built.log is not None
    assert any("buildah" in message for message in caplog.messages)
    assert "+ buildah" in built.log.read_text()
    caplog.clear()
    again = builder.build(tiny(), None)
    assert again.reused
    assert (again.digest, again.key, again.log) == (built.digest, built.key, None)
    assert caplog.messages == []


def test_another_content_is_another_stage(builder: Builder) -> None:
    assert builder.build(tiny(b"a"), None).key != builder.build(tiny(b"b"), None).key


@pytest.mark.long
def test_two_cold_builds_give_the_same_digests(
    base: Built, base_stage: Stage, builder: Builder, elsewhere: Settings, registry: Registry
) -> None:
    child = instructions(
        "RUN . /mnt/env.sh; set -eu; export SOURCE_DATE_EPOCH=315532800; python3 -m venv /opt/app-root; id > /opt/x"
    )
    there = Builder(elsewhere, Registry(elsewhere))
    base_there = there.build(base_stage, None)
    assert not base_there.reused
    assert base_there.digest == base.digest
    built, built_there = builder.build(child, base), there.build(child, base_there)
    assert not built.reused
    assert not built_there.reused
    assert built_there.digest == built.digest
    stored = registry.manifest(registry.stages, built.digest)
    config = registry.blob(registry.stages, stored.document["config"]["digest"], stored.document["config"]["size"])
    for trace in (b"index.example", b"hidden", b"ca.pem", b"/home/build", b"127.0.0.1"):
        assert trace not in stored.content + config
    assert built_there.log is not None
    assert "hidden" not in built_there.log.read_text()


def test_a_stage_that_the_registry_lost_a_part_of_is_built_again(
    builder: Builder, registry: Registry, registry_server: RegistryServer
) -> None:
    stage = tiny(b"to be lost")
    graph, first = join({"tiny": [stage]}), builder.build(stage, None)
    assert builder.plan(graph, thorough=True).count(Action.reuse) == 1
    layer = registry.manifest(registry.stages, first.digest).document["layers"][0]["digest"]
    for link in list(registry_server.storage.rglob(f"_layers/sha256/{layer.removeprefix('sha256:')}/link")):
        link.unlink()
    assert builder.plan(graph, thorough=True).count(Action.build) == 1
    again = builder.build(stage, None)
    assert (again.reused, again.digest) == (False, first.digest)
    assert builder.plan(graph, thorough=True).count(Action.reuse) == 1


def test_the_registry_says_what_is_there_and_the_ledger_only_what_counts(
    builder: Builder, registry: Registry, registry_server: RegistryServer, tmp_path: Path
) -> None:
    stage = tiny(b"to vanish")
    graph, made = join({"tiny": [stage]}), builder.build(stage, None)
    with private_home(tmp_path / "elsewhere", registry_server.port) as settings:
        stranger = Builder(settings, registry)
        assert stranger.plan(graph).steps["tiny"].digest == made.digest
    for revision in list(registry_server.storage.rglob(f"revisions/sha256/{made.digest.removeprefix('sha256:')}")):
        shutil.rmtree(revision)
    assert made.key in registry.tags(registry.stages)
    assert builder.plan(graph, thorough=True).count(Action.build) == 1
    for tag in list(registry_server.storage.rglob(f"tags/{made.key}")):
        shutil.rmtree(tag)
    assert builder.plan(graph).count(Action.build) == 1


@pytest.mark.long
def test_two_cold_builds_of_a_profile_give_the_same_digest_for_every_stage(
    builder: Builder, jupyter_chain: tuple[Stage, ...], registry_server: RegistryServer, tmp_path: Path
) -> None:
    with private_home(tmp_path / "home", registry_server.port, repository="again") as settings:
        there = build_all(Builder(settings, Registry(settings)), jupyter_chain)
        assert not any(built.reused for built in there)
        here = build_all(builder, jupyter_chain)
        assert [built.digest for built in there] == [built.digest for built in here]
        assert [built.key for built in there] == [built.key for built in here]


def test_a_pulled_parent_is_as_good_as_a_built_one(
    base: Built, builder: Builder, registry: Registry, registry_server: RegistryServer, tmp_path: Path
) -> None:
    child = instructions("RUN echo pulled > /opt/pulled")
    with private_home(tmp_path / "home", registry_server.port, repository="third", used=False) as settings:
        third = Registry(settings)
        manifest = registry.manifest(registry.stages, base.digest)
        for part in (manifest.document["config"], *manifest.document["layers"]):
            third.mount(third.stages, part["digest"], registry.stages, part["size"])
        third.put_manifest(third.stages, base.key, manifest.content, manifest.media_type)
        assert Builder(settings, third).build(child, base).digest == builder.build(child, base).digest


def test_compiled_python_is_not_stale(base: Built, shared: Settings) -> None:
    argv = ["run", "--rm", "--network", "none", *tools.run_limits(shared)]
    image = f"{shared.registry_host}/{shared.repository}/stages@{base.digest}"
    podman = tools.podman(shared)
    command.run([*podman, "pull", "--tls-verify=false", f"docker://{image}"], root=True)
    said = command.run([*podman, *argv, image, "python3", "-v", "-c", "import json"], root=True).stderr
    assert "matches" in said
    assert "stale" not in said


def test_the_base_has_nothing_of_the_machine_that_made_it(base: Built, base_recipe: Base, shared: Settings) -> None:
    image = f"{shared.registry_host}/{shared.repository}/stages@{base.digest}"
    podman = tools.podman(shared)
    command.run([*podman, "pull", "--tls-verify=false", f"docker://{image}"], root=True)
    container = command.run([*podman, "create", *tools.run_limits(shared), image, "true"], root=True).stdout.strip()
    root = Path(command.run([*podman, "mount", container], root=True).stdout.strip())
    try:
        assert list((root / "etc/ssh").glob("ssh_host_*")) == []
        [sources] = (root / "etc/apt/sources.list.d").iterdir()
        assert sources.read_text() == apt.files(base_recipe)["files/debian.sources"].decode()
        assert (root / "etc/hostname").read_text() == (root / "etc/resolv.conf").read_text() == ""
        assert list((root / "mnt").iterdir()) == []
        for partial in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
            assert (root / partial).stat().st_uid == 0
    finally:
        command.run([*podman, "umount", container], root=True)
        command.run([*podman, "rm", container], root=True)


def test_a_step_that_fails_is_named_with_its_last_words(base: Built, builder: Builder, shared: Settings) -> None:
    stage = instructions("RUN echo fine\nRUN echo so far; echo the reason >&2; exit 7")
    reports: list[progress.Report] = []
    with progress.listening(reports.append), pytest.raises(RefitError, match="'child' can't be built") as caught:
        builder.build(stage, base)
    error = caught.value
    assert "STEP 3/3: RUN echo so far" in error.what
    assert "the reason" in error.why
    log = Path(error.hint.removeprefix("the whole output is in ").removesuffix("."))
    assert "the reason" in log.read_text()
    assert reports[-1].state is progress.State.failed
    assert_clean(shared)


@pytest.mark.long
def test_packages_that_the_mirror_no_longer_has(builder: Builder, base_stage: Stage, shared: Settings) -> None:
    stage = replace(base_stage, name="outdated", system=(*base_stage.system, "tmux=0.0~never"))
    with pytest.raises(RefitError, match="has no longer") as caught:
        builder.build(stage, None)
    assert "tmux 0.0~never" in caught.value.why
    assert_clean(shared)


def test_a_full_disk_is_said_to_be_full(base: Built, registry: Registry, tmp_path: Path, shared: Settings) -> None:
    with (
        small_disk(tmp_path / "small", 600) as folder,
        private_home(folder / "home", shared.registry_port, ca_bundle=None) as settings,
    ):
        stage = instructions("RUN head -c 700000000 /dev/zero > /opt/large")
        with pytest.raises(RefitError, match="The disk is full"):
            Builder(settings, registry).build(stage, base)
        assert_clean(settings)
        with pytest.raises(RefitError, match="The disk is full"):
            Builder(settings, registry).build(tiny(bytes(600_000_000)), None)
        assert_clean(settings)


def test_a_registry_that_is_full_or_down(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", 8) as folder,
        serve_registry(folder / "registry") as server,
        private_home(tmp_path / "home", server.port) as settings,
    ):
        stage = tiny(secrets.token_bytes(20_000_000))
        with pytest.raises(RegistryError, match=f"127.0.0.1:{server.port} is full"):
            Builder(settings, Registry(settings)).build(stage, None)
        assert_clean(settings)
    with private_home(tmp_path / "home", free_port()) as settings, pytest.raises(RegistryError, match="doesn't answer"):
        Builder(settings, Registry(settings)).build(tiny(), None)


_BUILD = """
import sys
from pathlib import Path
from flows.images.build import Builder, Built
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage
from flows.core.settings import Settings
settings = Settings(home=Path(sys.argv[1]), registry_port=int(sys.argv[2]))
parent = Built("base-deb12", "", None, sys.argv[3])
stage = Stage("endless", Kind.instructions, "base-deb12", f"RUN while :; do echo on; sleep {sys.argv[4]}; done")
Builder(settings, Registry(settings)).build(stage, parent)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_is_ended_leaves_nothing(base: Built, shared: Settings, ending: signal.Signals) -> None:
    nap = f"300.{secrets.randbelow(10**9)}"
    argv = [sys.executable, "-c", _BUILD, str(shared.home), str(shared.registry_port), base.digest, nap]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: sleepers(nap))
    process.send_signal(ending)
    process.wait(PATIENCE)
    if ending is signal.SIGKILL:
        assert working_containers(shared) != []
        assert recover(shared) == 1
    assert sleepers(nap) == []
    assert_clean(shared)


def test_builds_of_living_processes_are_left_alone(shared: Settings) -> None:
    folder = shared.folder("running", "build-alive")
    me = process_records.ProcessId.of(psutil.Process().pid)
    assert me is not None
    (folder / "owner").write_text(f"{me.pid} {me.boot} {me.started}")
    assert recover(shared) == 0
    (folder / "owner").write_text(f"{me.pid} {me.boot} 1")
    assert recover(shared) == 1
    assert not folder.exists()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system with so much room."""
    folder.mkdir()
    command.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "refit-test", folder], root=True)
    try:
        yield folder
    finally:
        command.run(["umount", "--lazy", folder], root=True)
