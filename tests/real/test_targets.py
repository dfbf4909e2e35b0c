"""Names in commands of a migration that aren't there: said, and nothing is touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.recovery import reopen
from flows.migrations.rollouts.targets import targets
from flows.sessions.homes.folders import ref_of
from flows.sessions.model import Session, TokenRef
from tests.support.machine import serve_registry
from tests.support.variants import sign

STEM, RELEASE = "jupyter-minimal-deb12-py311", "2026a"
TAG = f"{STEM}_{RELEASE}_20261121"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with serve_registry(tmp_path / "registry") as server:
        yield Settings(home=tmp_path / "home", registry_port=server.port)


def image(settings: Settings, tag: str, profile: str = "") -> str:
    """An image without layers, with the labels of a profile or with none; its digest."""
    registry = Registry(settings)
    labels = {"io.refit.profile": profile, "io.refit.release": RELEASE} if profile else None
    config = canonical({"config": {"Labels": labels}, "rootfs": {"type": "layers", "diff_ids": []}})
    registry.put_blob(registry.repository, config)
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, config), "layers": []}
    content = canonical(document)
    digest = registry.put_manifest(registry.repository, tag, content, MANIFEST)
    sign(settings, registry, Manifest(digest, MANIFEST, content), labels or {})
    return digest


@pytest.fixture
def ada(tmp_path: Path) -> Session:
    return Session(
        "ada",
        STEM,
        RELEASE,
        "sha256:" + "a" * 64,
        200001,
        ref_of(tmp_path),
        TokenRef(str(tmp_path / "token")),
        Access(),
    )


def test_an_image_is_named_by_tag_or_digest(settings: Settings, ada: Session) -> None:
    digest = image(settings, TAG, STEM)
    assert targets([ada], TAG, settings) == targets([ada], digest, settings) == {(STEM, RELEASE): digest}


@pytest.mark.parametrize("name", [f"{TAG[:-1]}2", "sha256:" + "0" * 64, "../tags/list", "no image"])
def test_an_image_that_is_not_there_is_refused_with_the_nearest(settings: Settings, ada: Session, name: str) -> None:
    image(settings, TAG, STEM)
    with pytest.raises(UnknownName, match="There is no image") as refused:
        targets([ada], name, settings)
    assert TAG in str(refused.value)


@pytest.mark.parametrize(
    ("profile", "why"), [("runtime-minimal-deb12-py311", "It is runtime-minimal"), ("", "`refit build` didn't make it")]
)
def test_an_image_of_something_else_is_refused(settings: Settings, ada: Session, profile: str, why: str) -> None:
    image(settings, "other", profile)
    with pytest.raises(RefitError, match="not for any of these sessions") as refused:
        targets([ada], "other", settings)
    assert why in refused.value.why


def test_a_session_that_was_never_moved_has_no_move_to_end(settings: Settings) -> None:
    with pytest.raises(UnknownName, match="'ada'"):
        reopen(MoveExecutor.open(settings), "ada")
