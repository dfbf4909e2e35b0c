"""Images that a prune leaves, whatever their age: among others those to which a snapshot would go back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flows import prune_images
from flows.core.database import now, open_database
from flows.core.settings import Settings
from flows.sessions import engines
from flows.sessions.snapshots.model import Kind, Snapshot
from flows.sessions.snapshots.records import SnapshotRecords
from flows.sessions.store import Store


def test_the_image_of_a_snapshot_that_is_kept_stays_for_a_rollback_with_image(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "engine", lambda settings: SimpleNamespace(containers=lambda: ()))
    database, image = open_database(settings.database), f"sha256:{64 * '1'}"
    Store(database).bring_home_back("ada", 234_567)
    records = SnapshotRecords(database)
    snapshot = Snapshot("1-a", "ada", "then", Kind.named, "ada", now(), image=image)
    records.begin(snapshot)
    records.complete(snapshot)
    assert "ada" in prune_images.in_use(settings, database)[image]
    none = settings.model_copy(update={"keep_images_of_snapshots": 0})
    assert image not in prune_images.in_use(none, database)
    records.part_with(snapshot, "ada")
    assert image not in prune_images.in_use(settings, database)
