"""Evidence in a real registry: written by many at once, kept by its garbage collection, shown by `refit`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from flows.core import database
from flows.core.errors import UnknownName
from flows.core.settings import Settings
from flows.images.manifests import Manifest, canonical
from flows.images.registry import Registry
from flows.publishing import evidence
from tests.support.attached import NEW, OLD, STEM, image
from tests.support.machine import RegistryServer, serve_registry
from tests.support.waiting import PATIENCE

REFIT = Path(sys.executable).parent / "refit"
_WRITER = """
import json, sys
from flows.core import database
from flows.publishing import evidence
from flows.images.registry import Registry
from flows.core.settings import load

settings, name = load(), sys.argv[1]
registry, engine = Registry(settings), database.open_database(settings.database)
image = evidence.find(registry, sys.argv[2])
for number in range(10):
    evidence.attach(registry, image, {f"{name}-{number}.txt": b"written by " + name.encode()}, engine)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RegistryServer]:
    with serve_registry(tmp_path / "registry") as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, server: RegistryServer) -> Settings:
    return Settings(home=tmp_path / "home", registry_port=server.port)


@pytest.fixture
def registry(settings: Settings) -> Registry:
    return Registry(settings)


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    opened = database.open_database(settings.database)
    yield opened
    opened.dispose()


def packages(registry: Registry, subject: Manifest, engine: Engine, **versions: str) -> None:
    listed = {f"deb/{name}": version for name, version in versions.items()}
    evidence.attach(registry, subject, {evidence.PACKAGES: canonical(listed), evidence.CHECKS: b"[]"}, engine)


def refit(settings: Settings, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {"REFIT_HOME": str(settings.home), "REFIT_REGISTRY_PORT": str(settings.registry_port)}
    argv = [REFIT, *words]
    return subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def test_writers_at_once_lose_nothing(registry: Registry, settings: Settings) -> None:
    image(registry, OLD, b"layer")
    variables = {"REFIT_HOME": str(settings.home), "REFIT_REGISTRY_PORT": str(settings.registry_port)}
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", _WRITER, name, OLD], env={**os.environ, **variables})
            )
            for name in ("ada", "bob")
        ]
        assert [writer.wait(timeout=PATIENCE) for writer in writers] == [0, 0]
    names = {file.name for file in evidence.listed(registry, evidence.find(registry, OLD).digest)}
    assert names == {f"{name}-{number}.txt" for name in ("ada", "bob") for number in range(10)}


@pytest.mark.parametrize("state", ["stopped", "read-only"])
@pytest.mark.parametrize("options", [(), ("--delete-untagged",)])
def test_garbage_collection_keeps_evidence_unless_it_deletes_what_has_no_tag(
    tmp_path: Path, options: tuple[str, ...], state: str
) -> None:
    folder = tmp_path / "registry"
    with serve_registry(folder) as server:
        settings = Settings(home=tmp_path / "home", registry_port=server.port)
        engine, registry = database.open_database(settings.database), Registry(settings)
        subject = image(registry, OLD, b"layer")
        packages(registry, subject, engine, tmux="3")
    storage = {"filesystem": {"rootdirectory": str(server.storage)}, "maintenance": {"readonly": {"enabled": True}}}
    collect = ["docker-registry", "garbage-collect", *options, str(folder / "registry.yml")]
    with ExitStack() as running:
        if state == "read-only":
            running.enter_context(serve_registry(folder, server.port, storage=storage))
        said = subprocess.run(collect, capture_output=True, text=True, check=True).stdout
        assert "blobs marked" in said
    with serve_registry(folder, server.port):
        kept = evidence.packages(registry, subject.digest)
        assert kept == ({} if options else {"deb/tmux": "3"})
        # A lost part comes back with the next publishing; the image itself was never touched.
        packages(registry, evidence.find(registry, OLD), engine, tmux="3")
        assert evidence.packages(registry, subject.digest) == {"deb/tmux": "3"}
    engine.dispose()


def test_what_two_images_have_otherwise(registry: Registry, engine: Engine, settings: Settings) -> None:
    old = image(registry, OLD, b"base", b"old top" * 100)
    new = image(registry, NEW, b"base", b"new top" * 1000, b"one more" * 10)
    packages(registry, old, engine, tmux="3", less="1", nano="1")
    packages(registry, new, engine, tmux="4", nano="1", git="2")
    answer = json.loads(refit(settings, "diff", OLD, NEW, "--json").stdout)
    assert answer == {
        "old": old.digest,
        "new": new.digest,
        "packages": {"added": {"deb/git": "2"}, "removed": {"deb/less": "1"}, "changed": {"deb/tmux": ["3", "4"]}},
        "layers": 3,
        "layers_shared": 1,
        "bytes_shared": 4,
        "bytes_to_pull": 7080,
    }
    told = refit(settings, "diff", OLD, new.digest).stdout
    assert "deb/tmux" in told and "1 of 3 layers are shared" in told


def test_evidence_is_shown(registry: Registry, engine: Engine, settings: Settings) -> None:
    subject = image(registry, OLD, b"layer")
    packages(registry, subject, engine, tmux="3")
    answer = json.loads(refit(settings, "evidence", OLD, "--json").stdout)
    assert answer["digest"] == subject.digest
    assert [file["name"] for file in answer["files"]] == [evidence.CHECKS, evidence.PACKAGES]
    assert refit(settings, "evidence", OLD, "--file", evidence.PACKAGES).stdout == '{"deb/tmux":"3"}'
    assert evidence.PACKAGES in refit(settings, "evidence", OLD).stdout


@pytest.mark.parametrize("words", [("evidence", f"{OLD[:-1]}9"), ("diff", OLD, f"{STEM}_20261112")])
def test_the_nearest_image_is_suggested(registry: Registry, settings: Settings, words: tuple[str, ...]) -> None:
    image(registry, OLD, b"layer")
    done = refit(settings, *words)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert f"Did you mean '{OLD}'?" in "".join(done.stderr.split("\n"))


def test_only_an_image_is_an_image(registry: Registry, engine: Engine) -> None:
    subject = image(registry, OLD, b"layer")
    packages(registry, subject, engine, tmux="3")
    assert evidence.find(registry, subject.digest) == subject
    for name in ("", "../tags/list", f"{OLD}?n=1", subject.digest.replace(":", "-"), f"sha256:{'0' * 64}"):
        with pytest.raises(UnknownName) as unknown:
            evidence.find(registry, name)
        assert unknown.value.why == f"Known: {OLD}."


def test_the_nearest_file_is_suggested(registry: Registry, engine: Engine, settings: Settings) -> None:
    packages(registry, image(registry, OLD, b"layer"), engine, tmux="3")
    done = refit(settings, "evidence", OLD, "--file", "package.json")
    assert done.returncode == 1 and "Did you mean 'packages.json'?" in done.stderr
