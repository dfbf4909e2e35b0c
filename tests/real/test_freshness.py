"""The mirror and the package index of this machine, looked at before anything is locked again."""

from __future__ import annotations

import json
import logging

import pytest

from flows.catalog.model import Base, Catalog
from flows.core.settings import Settings
from flows.locks import freshness, system
from flows.locks.freshness import Verdict


@pytest.fixture
def own(shared: Settings, settings: Settings) -> Settings:
    """The machine's own mirror and index, and a home in which nothing was seen yet."""
    return shared.model_copy(update={"home": settings.home})


def test_no_program_is_started_until_the_mirror_moves(
    base_recipe: Base, own: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refit.command")
    exact = freshness.resolve(base_recipe, own)
    assert [record.name for record in caplog.records].count("refit.command") == 1
    assert exact == system.resolve(base_recipe, own)
    caplog.clear()
    (file,) = own.folder("cache", "freshness").iterdir()
    record = json.loads(file.read_text())
    for part in record["parts"].values():
        part["release"]["digest"] = ""  # as if each list had changed: then all are read
    file.write_text(json.dumps(record))
    assert freshness.resolve(base_recipe, own) == exact
    assert caplog.messages == []
    first = next(iter(record["parts"].values()))
    first["offers"]["libc6"] = ["1.0 an-older-file"]
    file.write_text(json.dumps(record))
    finding = freshness.look_at_system(base_recipe, own).finding
    assert finding.verdict is Verdict.changed
    assert "libc6" in finding.reason


def test_the_catalogs_own_lock_is_looked_at_against_the_index(catalog: Catalog, own: Settings) -> None:
    folder = catalog.bundles["minimal"].pythons["py311"]
    first = freshness.look_at_locks({folder: ""}, own)[folder]
    assert first.finding.verdict is Verdict.unknown
    assert "when this lock was made" in first.finding.reason
    freshness.keep(first, own)
    second = freshness.look_at_locks({folder: ""}, own)[folder]
    assert first.pages.keys() == second.pages.keys()
    moved = {url for url, page in second.pages.items() if page.digest != first.pages[url].digest}
    assert second.finding.verdict is (Verdict.changed if moved else Verdict.same)  # the index may move in between
