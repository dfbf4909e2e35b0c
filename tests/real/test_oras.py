"""Our attachments, read by the command line program oras, and its attachments, read by us."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from flows.core import database
from flows.core.settings import Settings
from flows.images.artifacts import Artifacts
from flows.images.manifests import canonical
from flows.images.registry import Registry
from flows.publishing import evidence
from flows.signing.trust import ENVELOPE
from tests.support.attached import OLD, image
from tests.support.machine import serve_registry
from tests.support.oras_program import OrasProgram, oras_program

FILES = {evidence.PACKAGES: canonical({"deb/tmux": "3"}), evidence.CHECKS: b"[]", "base.system.txt": b"tmux 3\n"}
SIGNATURE = {evidence.SIGNATURE: b'{"payload":""}'}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("REFIT_TEST_IMAGES")
    return oras_program(Path(kept, "oras") if kept else tmp_path_factory.mktemp("oras"))


@pytest.fixture
def oras(program: Path, tmp_path: Path) -> OrasProgram:
    (tmp_path / "person").mkdir()
    return OrasProgram(program, tmp_path / "person")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with (
        serve_registry(tmp_path / "registry") as server,
        Registry(Settings(home=tmp_path / "home", registry_port=server.port)) as registry,
    ):
        yield registry


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = database.open_database(f"sqlite:///{tmp_path}/refit.db")
    yield opened
    opened.dispose()


def test_oras_discovers_and_pulls_what_is_attached(registry: Registry, engine: Engine, oras: OrasProgram) -> None:
    subject, place = image(registry, OLD, b"layer"), f"{registry.host}/{registry.repository}"
    evidence.attach(registry, subject, FILES, engine)
    evidence.add(registry, subject, ENVELOPE, SIGNATURE, engine)
    seen = oras.json("discover", f"{place}:{OLD}")["manifests"]
    attached = {entry["artifactType"]: entry["digest"] for entry in seen}
    assert attached.keys() == {evidence.KIND, ENVELOPE}
    assert [
        entry["digest"] for entry in oras.json("discover", f"{place}:{OLD}", "--artifact-type", ENVELOPE)["manifests"]
    ] == [attached[ENVELOPE]]
    for kind, files in ((evidence.KIND, FILES), (ENVELOPE, SIGNATURE)):
        folder = oras.home / kind.rpartition(".")[2]
        oras.run("pull", f"{place}@{attached[kind]}", "--output", str(folder))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_what_oras_attaches_stands_beside_ours(registry: Registry, engine: Engine, oras: OrasProgram) -> None:
    subject = image(registry, OLD, b"layer")
    evidence.attach(registry, subject, FILES, engine)
    (oras.home / "note.txt").write_text("seen by ada")
    theirs = oras.json(
        "attach",
        f"{registry.host}/{registry.repository}:{OLD}",
        "--artifact-type",
        "text/vnd.note",
        "note.txt:text/plain",
    )
    [file] = Artifacts(registry, "text/vnd.note").files(theirs["digest"])
    assert Artifacts(registry, "text/vnd.note").fetch(file) == b"seen by ada"
    assert {each.name for each in evidence.listed(registry, subject.digest)} == FILES.keys()
    evidence.add(registry, subject, ENVELOPE, SIGNATURE, engine)
    seen = oras.json("discover", f"{registry.host}/{registry.repository}:{OLD}")["manifests"]
    assert {entry["artifactType"] for entry in seen} == {evidence.KIND, ENVELOPE, "text/vnd.note"}
