"""Requests of a run to the registry for the layers that it carries: each once, and none that it can do without."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.images.grafting.layer_cache import Layers, NotCarried
from flows.images.grafting.layers import Stored, Trees
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage, layer_tag
from flows.signing.trust import Trust
from tests.support.small_registry import HELLO, Answer, client, ping, server

TAG, OTHER = layer_tag("key", {}), layer_tag("other", {})
LAYER = Stored(digest_of(b"layer"), 5, digest_of(b"tar"))


class Keeping:
    """A registry that keeps manifests by their tags, and says that it has every blob or none."""

    def __init__(self, *, blobs: bool = True) -> None:
        self.blobs, self.held, self.asked = blobs, dict[str, bytes](), list[str]()

    def __call__(self, request: BaseHTTPRequestHandler) -> Answer:
        if ping(request):
            return HELLO
        name = request.path.rpartition("/")[2]
        self.asked.append(f"{request.command} {name}")
        if request.command == "POST":
            return 202, {"Location": "/v2/elsewhere/blobs/uploads/1"}, b""
        if request.command == "PUT":
            self.held[name] = request.body  # type: ignore[attr-defined]
            return 201, {}, b""
        if request.command == "HEAD":
            return (200 if self.blobs else 404), {}, b""
        return (200, {"Content-Type": MANIFEST}, self.held[name]) if name in self.held else (404, {}, b"")


def image(config: bytes, *layers: Stored) -> Manifest:
    document = {"config": descriptor(CONFIG, config), "layers": [layer.descriptor for layer in layers]}
    content = canonical(document)
    return Manifest(digest_of(content), MANIFEST, content)


def carrying(settings: Settings, registry: Registry) -> Layers:
    return Layers(settings, registry, Trust(settings, open_database(settings.database)))


def note(registry: Registry, settings: Settings, parent: Manifest) -> None:
    """The note of another run that has put the layer on a parent."""
    carrying(settings, registry)._note(TAG, LAYER, Stage("top", Kind.closed, "below", ""), parent, {})


def test_a_layer_is_looked_for_until_it_is_there_and_no_more_then(settings: Settings) -> None:
    held = Keeping()
    with server(held) as port:
        registry = client(settings, port)
        layers, parent = carrying(settings, registry), image(b"{}")
        for _ in range(2):
            with pytest.raises(NotCarried, match="never made"):
                layers._find(TAG)
        note(registry, settings, parent)
        held.asked.clear()
        first = layers._find(TAG)
        assert layers._find(TAG) is first
        assert (first.stored, first.stored.diff_id, first.parent) == (LAYER, LAYER.diff_id, parent.digest)
        assert held.asked == [f"GET {TAG}", f"HEAD {LAYER.digest}"]
        newer = image(b"other")
        layers._note(TAG, first.stored, Stage("top", Kind.closed, "other", ""), newer, first.parents)
        assert layers._find(TAG).parents == {"below": parent.digest, "other": newer.digest}


def test_a_layer_that_the_registry_has_lost_is_not_there(settings: Settings) -> None:
    held = Keeping(blobs=False)
    with server(held) as port:
        registry = client(settings, port)
        note(registry, settings, image(b"{}"))
        with pytest.raises(NotCarried, match="has lost"):
            carrying(settings, registry)._find(TAG)


def test_in_what_images_differ_is_told_without_their_configurations(settings: Settings) -> None:
    held = Keeping()
    with server(held) as port:
        trees = Trees(settings, client(settings, port))
        assert trees.differing("images", image(b"one", LAYER), image(b"other", LAYER)) == frozenset()
    assert held.asked == []


@pytest.mark.slow
def test_a_layer_counts_only_as_it_was_noted_by_a_key_that_counts(settings: Settings, tmp_path: Path) -> None:
    held = Keeping()
    with server(held) as port:
        registry = client(settings, port)
        note(registry, settings, image(b"{}"))
        good, strange = held.held[TAG], settings.model_copy(update={"home": tmp_path / "strange"})
        note(registry, strange, image(b"{}"))
        other = held.held[TAG]
        edited = json.loads(good)
        edited["layers"][0]["digest"] = digest_of(b"evil")
        unsigned = {name: part for name, part in json.loads(good).items() if name != "annotations"}
        for written in (other, canonical(edited), canonical(unsigned), good.replace(b"parent", b"barent")):
            held.held[TAG] = written
            with pytest.raises(NotCarried, match="nobody whose key counts"):
                carrying(settings, registry)._find(TAG)
        held.held = {OTHER: good}
        with pytest.raises(NotCarried, match="nobody whose key counts"):
            carrying(settings, registry)._find(OTHER)
        held.held = {TAG: good}
        assert carrying(settings, registry)._find(TAG).stored == LAYER
