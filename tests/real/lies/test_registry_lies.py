"""The client against a registry that lies: a real one, behind a proxy that changes what it says.

To any answer, the client ends in time, takes little memory, tells the password to nobody else, and takes nothing for
what it isn't.
"""

from __future__ import annotations

import time
import tracemalloc

import pytest

from flows.core.settings import Settings
from flows.images import registry as module
from flows.images.manifests import MANIFEST, Manifest, digest_of
from flows.images.registry_errors import NoAnswer, RegistryError
from tests.support.liars import PASSWORD, WORD, Said
from tests.support.lies import (
    CONFIGURATION,
    DIGEST,
    IMAGE,
    IMAGES,
    LAYER,
    LIES,
    SLOW,
    Scene,
    always,
    chunked,
    client,
    download,
    find,
    manifests,
    of,
    where,
    write,
)
from tests.support.waiting import at_most, free_port

MOST_MEMORY = 48 << 20  # bytes; four megabytes of a manifest, and what they are as data
MOST_SECONDS = at_most(60.0)  # on a machine that has a lot to do
SHORT_SECONDS = 1.0  # for what would never end


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_an_error_in_time_and_in_little_memory(
    scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, deed, kind, words = LIES[name]
    monkeypatch.setattr(module, "_MOST_PAGES", 30)
    if words == SLOW:
        monkeypatch.setattr(scene.registry, "_seconds", SHORT_SECONDS)
        monkeypatch.setattr(scene.registry, "_rate", 1e6)
    scene.hear(lie)
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(kind) as caught:
            deed(scene.registry)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)
    assert PASSWORD not in str(caught.value) and WORD not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert time.monotonic() - started < MOST_SECONDS
    assert peak < MOST_MEMORY


def test_what_a_lie_is_told_apart_from_is_answered(scene: Scene, settings: Settings) -> None:
    registry = scene.registry
    assert registry.manifest(IMAGES, "tag").digest == registry.digest(IMAGES, "tag") == DIGEST
    assert registry.config(IMAGES, registry.manifest(IMAGES, DIGEST))["config"] == {}
    assert download(registry) == LAYER
    assert "tag" in registry.tags(IMAGES)
    registry.try_storing()
    registry.mount("others", digest_of(LAYER), IMAGES, len(LAYER))
    assert registry.missing("others", Manifest(DIGEST, MANIFEST, IMAGE)) == (digest_of(CONFIGURATION),)


def test_an_answer_to_an_upload_is_not_read_to_its_end(scene: Scene) -> None:
    scene.hear(where(of("manifests", "PUT"), chunked(201, bytes(1 << 12))))
    assert write(scene.registry)


def test_an_error_names_two_digests_or_none(scene: Scene) -> None:
    scene.hear(manifests(docker_content_digest=f"sha256:{'0' * 64}"))
    with pytest.raises(RegistryError) as caught:
        find(scene.registry)
    assert caught.value.why.count(DIGEST) == 1
    assert "0" * 64 in caught.value.why


def test_what_is_remembered_has_a_limit_in_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = module._Memory[bytes]()
    for number in range(100):
        memory.put(IMAGES, str(number), bytes(8), 4 << 20)
    assert sum(memory.get(IMAGES, str(number)) is not None for number in range(100)) == 16


def test_the_mend_is_that_of_the_registry(scene: Scene, settings: Settings) -> None:
    scene.hear(always(Said(429, {"content-length": "0"})))
    elsewhere = client(
        settings, 1, registry=f"127.0.0.1:{scene.liar.port}", registry_tls=False, registry_wait_seconds=0.0
    )
    with pytest.raises(NoAnswer) as caught:
        find(elsewhere)
    assert "registry_wait_seconds" in caught.value.hint and "refit up" not in caught.value.hint
    gone = client(settings, 1, registry=f"127.0.0.1:{free_port()}", registry_tls=False)
    with pytest.raises(NoAnswer) as caught:
        find(gone)
    assert "refit up" not in caught.value.hint
