"""Stages on which a build stands: this database knows them, or a trusted key has signed them; no tag decides."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.settings import Settings
from flows.images.build import Builder
from flows.images.manifests import MANIFEST
from flows.images.plan import Action
from flows.images.registry import Registry
from flows.images.signed import signature_tag
from flows.images.stages import join
from flows.signing.keys import Keys, pem_of
from tests.support import tiny
from tests.support.machine import RegistryServer, private_home


@pytest.fixture
def first(registry_server: RegistryServer, tmp_path: Path) -> Iterator[Settings]:
    """A Refit with a repository of its own, and a key that nobody else knows."""
    with private_home(tmp_path / "first", registry_server.port, repository=secrets.token_hex(4)) as settings:
        Keys(settings).renew()
        yield settings


@pytest.fixture
def second(first: Settings, tmp_path: Path) -> Iterator[Settings]:
    """Another one with the same registry: another database, another key."""
    with private_home(tmp_path / "second", first.registry_port, repository=first.repository) as settings:
        Keys(settings).renew()
        yield settings


def builder(settings: Settings) -> Builder:
    return Builder(settings, Registry(settings))


def swapped(registry: Registry, key: str) -> str:
    """A person who may push lets the tag of a stage point at another manifest, which differs in blanks; its digest."""
    manifest = registry.manifest(registry.stages, key)
    other = json.dumps(json.loads(manifest.content), indent=3).encode()
    return registry.put_manifest(registry.stages, key, other, MANIFEST)


def test_a_stage_whose_tag_was_moved_is_the_one_that_was_recorded(first: Settings) -> None:
    registry, graph = Registry(first), join({"root": [tiny.root()]})
    made = builder(first).build(tiny.root(), None)
    evil = swapped(registry, made.key)
    assert evil != made.digest and registry.digest(registry.stages, made.key) == evil
    assert builder(first).plan(graph, thorough=True).steps["root"].digest == made.digest
    again = builder(first).build(tiny.root(), None)
    assert (again.reused, again.digest) == (True, made.digest)
    assert registry.digest(registry.stages, made.key) == made.digest


def test_after_the_loss_of_the_database_only_what_was_signed_is_taken(first: Settings) -> None:
    registry, graph = Registry(first), join({"root": [tiny.root()]})
    made = builder(first).build(tiny.root(), None)
    (first.home / "refit.db").unlink()
    swapped(registry, made.key)
    assert builder(first).plan(graph).steps["root"].digest == made.digest
    again = builder(first).build(tiny.root(), None)
    assert (again.reused, again.digest) == (True, made.digest)
    assert registry.digest(registry.stages, made.key) == made.digest


def test_a_stage_of_a_key_that_nobody_trusts_is_built_and_of_one_that_is_trusted_taken(
    first: Settings, second: Settings
) -> None:
    graph, made = join({"root": [tiny.root()]}), builder(first).build(tiny.root(), None)
    assert builder(second).plan(graph).count(Action.build) == 1
    trusting = second.model_copy(update={"trusted_keys": (pem_of(Keys(first).signer().public_key),)})
    assert builder(trusting).plan(graph).steps["root"].digest == made.digest
    taken = builder(trusting).build(tiny.root(), None)
    assert (taken.reused, taken.digest) == (True, made.digest)
    stranger = second.model_copy(update={"database_url": f"sqlite:///{second.home}/other.db"})
    built = builder(stranger).build(tiny.root(), None)
    assert not built.reused and built.digest == made.digest


def test_a_signature_of_another_stage_or_none_is_none(first: Settings) -> None:
    registry, graph = Registry(first), join({"root": [tiny.root()]})
    one, other = builder(first).build(tiny.root(), None), builder(first).build(tiny.root(0.01), None)
    (first.home / "refit.db").unlink()
    signature = registry.manifest(registry.stages, signature_tag(other.key))
    registry.put_manifest(registry.stages, signature_tag(one.key), signature.content, MANIFEST)
    assert builder(first).plan(graph).count(Action.build) == 1
    bare = {name: part for name, part in signature.document.items() if name != "annotations"}
    registry.put_manifest(registry.stages, signature_tag(one.key), json.dumps(bare).encode(), MANIFEST)
    assert builder(first).plan(graph).count(Action.build) == 1
    again = builder(first).build(tiny.root(), None)
    assert not again.reused and again.digest == one.digest
