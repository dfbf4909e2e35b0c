"""Trees of images, as far as no registry is asked."""

from __future__ import annotations

from pathlib import Path

from flows.images.grafting.layers import Trees
from flows.images.registry import Registry
from flows.settings import Settings


def test_images_of_the_same_layers_do_not_differ(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    trees = Trees(settings, Registry(settings))
    # Nothing is left of a stack when both have the same layers, and only the configuration is another.
    assert trees._differing("stages", (), ()) == frozenset()
