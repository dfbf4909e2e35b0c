"""Pruning a real registry: removed images leave the disk, the others are whole, and a kill in between does no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import which

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from flows import services
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.programs import process_records
from flows.core.settings import Settings
from flows.images.ledger import StageRow
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.prune_images import _carry_out
from flows.publishing import evidence, prune, stored_manifests
from flows.publishing.prune import InUse, Plan, Policy
from flows.services import garbage, process
from flows.services.embedded import registry as embedded
from tests.support.building import words
from tests.support.waiting import free_port, wait_until

ALIAS = "jupyter-minimal-deb12-py311_2026a"
NOW = datetime.now(UTC)
POLICY = Policy(images=1, days=7)
LAYER = 1_000_000  # bytes


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """A home whose embedded registry runs."""
    made = Settings(home=tmp_path / "home", registry_port=free_port(), prefect_port=free_port(), gateway=False)
    # From another process, as `refit up` does: a child of this one would stay a zombie when others end it.
    code = "process.start(registry(load())); process.wait_until_answering(registry(load()))"
    in_python(made, f"from flows.services import process; from flows.services.embedded import registry; {code}").wait()
    try:
        yield made
    finally:
        services.down(made)


def in_python(settings: Settings, code: str, path: str = "") -> subprocess.Popen[bytes]:
    """Run code that `load()`s these settings in a process of its own; programs are looked for in `path` first."""
    environment = {
        **os.environ,
        "PATH": f"{path}:{os.environ['PATH']}",
        "REFIT_HOME": str(settings.home),
        "REFIT_REGISTRY_PORT": str(settings.registry_port),
        "REFIT_PREFECT_PORT": str(settings.prefect_port),
    }
    return subprocess.Popen([sys.executable, "-c", f"from flows.core.settings import load; {code}"], env=environment)


@pytest.fixture
def registry(settings: Settings) -> Registry:
    return Registry(settings)


@pytest.fixture
def database(settings: Settings) -> Engine:
    return open_database(settings.database)


def push(registry: Registry, repository: str, layers: str, *tags: str, content: str = "") -> Manifest:
    """An image whose layers are a megabyte each, under each of the tags."""
    config = canonical({"config": {"Labels": {"io.refit.content": content}}, "layers": layers})
    blobs = [letter.encode() * LAYER for letter in layers]
    for blob in (config, *blobs):
        registry.put_blob(repository, blob)
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", blob) for blob in blobs],
    }
    written = canonical(document)
    for reference in (digest_of(written), *tags):
        registry.put_manifest(repository, reference, written, MANIFEST)
    return Manifest(digest_of(written), MANIFEST, written)


def stage(
    registry: Registry, database: Engine, name: str, layers: str, parent: Manifest | None = None, days: int = 100
) -> Manifest:
    key = f"{name}{layers}".encode().hex().ljust(64, "0")
    pushed = push(registry, registry.stages, layers, key)
    inputs = canonical({"parent": {"digest": parent.digest} if parent else {}}).decode()
    with Session(database) as session, session.begin():
        row = StageRow(key=key, name=name, digest=pushed.digest, inputs=inputs, seconds=1.0)
        row.built = NOW - timedelta(days=days)
        session.add(row)
    return pushed


def attachment(registry: Registry, subject: Manifest) -> str:
    """The digest of the one attachment of an image."""
    index = registry.manifest(registry.repository, subject.digest.replace(":", "-"))
    return str(index.document["manifests"][0]["digest"])


def age(settings: Settings, days: float = 100) -> None:
    """Let everything in the registry have been pushed long ago."""
    then = (NOW - timedelta(days=days)).timestamp()
    for link in (settings.home / "registry").rglob("link"):
        os.utime(link, (then, then))


def pruned(settings: Settings, in_use: InUse, policy: Policy = POLICY) -> Plan:
    registry, database = Registry(settings), open_database(settings.database)
    seen = stored_manifests.observe(registry, database, prune.storage_of(settings))
    return prune.remove(prune.plan(*seen, in_use, NOW, policy), registry, database, lambda: in_use)


def blobs(settings: Settings) -> set[str]:
    """The digests of all blobs that lie on the disk."""
    files = (settings.home / "registry").glob("docker/registry/v2/blobs/sha256/*/*/data")
    return {f"sha256:{path.parent.name}" for path in files}


def whole(registry: Registry, repository: str, digest: str) -> bool:
    document = registry.manifest(repository, digest).document
    return all(registry.has_blob(repository, part["digest"]) for part in (document["config"], *document["layers"]))


def test_what_goes_is_gone_from_the_disk_and_what_stays_is_whole(
    settings: Settings, registry: Registry, database: Engine
) -> None:
    base = stage(registry, database, "base", "a")
    top = stage(registry, database, "top", "ab", base)
    old_top = stage(registry, database, "top", "ac", base, days=101)
    stage(registry, database, "base", "z")
    repository = registry.repository
    image = push(registry, repository, "ab", f"{ALIAS}_20260103", ALIAS, content=top.digest)
    old = push(registry, repository, "ac", f"{ALIAS}_20260102", f"{ALIAS}_20260102.1", content=old_top.digest)
    used = push(registry, repository, "ad", f"{ALIAS}_20260101")
    untagged = push(registry, repository, "e")
    for name, subject in (("image", image), ("old", old)):
        evidence.attach(registry, subject, {"what": name.encode()}, database)
    attached = {subject.digest: attachment(registry, subject) for subject in (image, old)}
    age(settings)
    done = pruned(settings, {used.digest: "session ada"})
    gone = {item.digest for item in done.remove}
    assert gone >= {old.digest, old_top.digest, untagged.digest, attached[old.digest]}
    assert not gone & {base.digest, top.digest, image.digest, used.digest, attached[image.digest]}
    assert set(registry.tags(repository)) == {
        ALIAS, f"{ALIAS}_20260103", f"{ALIAS}_20260101", image.digest.replace(":", "-"),
    }  # fmt: skip
    before = blobs(settings)
    garbage.collect(settings)
    swept = before - blobs(settings)
    assert {digest_of(letter.encode() * LAYER) for letter in "cez"} <= swept
    assert {old.digest, untagged.digest, attached[old.digest]} <= swept
    assert done.bytes == 3 * LAYER + len(b"old")
    assert evidence.read(registry, image.digest, "what") == b"image"
    for digest in (image.digest, used.digest, attached[image.digest]):
        assert whole(registry, repository, digest)
    assert all(whole(registry, registry.stages, digest) for digest in (base.digest, top.digest))
    # A layer that was swept can be pushed again.
    again = push(registry, repository, "ac", "again")
    assert whole(registry, repository, again.digest)


def test_caches_come_under_their_limit_too(settings: Settings, database: Engine) -> None:
    old, new = (settings.folder("cache", "pip") / name for name in ("old", "new"))
    for days, file in enumerate((new, old)):
        file.write_bytes(os.urandom(1_000_000))
        then = (NOW - timedelta(days=days)).timestamp()
        os.utime(file, (then, then))
    _carry_out(settings.model_copy(update={"cache_gb": 0.0015}), database)
    assert (old.exists(), new.exists()) == (False, True)


def test_what_somebody_needs_meanwhile_is_spared(settings: Settings, registry: Registry, database: Engine) -> None:
    push(registry, registry.repository, "a", f"{ALIAS}_20260109", ALIAS)
    chosen = [push(registry, registry.repository, letter, f"{ALIAS}_2026010{n}") for n, letter in enumerate("bcd", 1)]
    age(settings)
    images, stages = stored_manifests.observe(registry, database, prune.storage_of(settings))
    planned = prune.plan(images, stages, {}, NOW, POLICY)
    assert [item.digest for item in planned.remove] == sorted(image.digest for image in chosen)
    now_used, retagged, unneeded = chosen
    registry.put_manifest(registry.repository, "pinned", retagged.content, MANIFEST)
    done = prune.remove(planned, registry, database, lambda: {now_used.digest: "session ada"})
    assert [item.digest for item in done.remove] == [unneeded.digest]
    why = {item.digest: item.reason for item in done.keep}
    assert (why[now_used.digest], why[retagged.digest]) == ("session ada", "pinned points at it now")
    assert registry.digest(registry.repository, unneeded.digest) is None


def test_while_garbage_is_collected_the_registry_can_be_read_and_not_written(
    settings: Settings, tmp_path: Path
) -> None:
    registry = Registry(settings)
    kept = push(registry, registry.repository, "a", ALIAS)
    with slow_sweep(settings, tmp_path):
        assert whole(registry, registry.repository, kept.digest)
        with pytest.raises(RefitError):
            registry.put_manifest(registry.repository, "new", kept.content, MANIFEST)


@pytest.mark.long
def test_a_kill_while_garbage_is_collected_is_mended_by_up(settings: Settings, tmp_path: Path) -> None:
    kept = push(Registry(settings), settings.repository, "a", ALIAS)
    with slow_sweep(settings, tmp_path) as collector:
        collector.send_signal(signal.SIGKILL)
        collector.wait()
    assert not process.as_wanted(embedded(settings))
    services.up(settings)
    assert sweeping(settings) == []
    registry = Registry(settings)
    assert registry.put_manifest(registry.repository, "new", kept.content, MANIFEST) == kept.digest
    garbage.collect(settings)
    assert registry.digest(registry.repository, "new") == kept.digest


@contextmanager
def slow_sweep(settings: Settings, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process collects garbage, and its sweeping takes long."""
    program = folder / "docker-registry"
    slow = 'if [ "$1" = garbage-collect ]; then exec sleep 600; fi'
    program.write_text(f'#!/bin/sh\n{slow}\nexec {which("docker-registry")} "$@"\n')
    program.chmod(0o755)
    collector = in_python(settings, "from flows.services import garbage; garbage.collect(load())", str(folder))
    try:
        wait_until(lambda: sweeping(settings))
        yield collector
    finally:
        collector.kill()
        collector.wait()


def sweeping(settings: Settings) -> list[str]:
    """The programs that the registry's notes name and that aren't the registry."""
    lines = [" ".join(words(program)) for program in process_records.noted(process.notes(embedded(settings)))]
    return [line for line in lines if "sleep" in line]
