"""Images that are fetched before a start: those that can't be had keep no session from starting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog import load
from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.migrations.start_sessions import fetch_for_start, named
from flows.sessions.homes.folders import ref_of
from flows.sessions.model import Session, TokenRef
from flows.sessions.store import Store
from tests.support.machine import ROOT


def test_a_session_starts_though_nobody_tells_which_image_is_its_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(home=tmp_path)

    def make(uid: int) -> Session:
        return Session(
            "ada", "p", "2026a", "sha256:0", uid, ref_of(tmp_path), TokenRef(str(tmp_path / "token")), Access(port=8000)
        )

    Store(open_database(settings.database)).add("ada", make, uids=Span(first=300_000, last=300_009))

    def away(_: SessionPlanner, name: str) -> tuple[str, ...]:
        raise RefitError("The registry doesn't answer.")

    monkeypatch.setattr(SessionPlanner, "images_at_start", away)
    fetch_for_start(settings, "ada")
    assert "The registry doesn't answer" in caplog.text
    with pytest.raises(UnknownName):
        fetch_for_start(settings, "bob")


def test_a_retired_profile_leads_to_its_successor_in_the_shell_too_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, old, gone = load.load_catalog(ROOT), "jupyter-minimal-deb12-py311", "jupyter-legacy-deb11-py39"
    release = replace(whole.releases["2026a"], retired={gone: old})
    monkeypatch.setattr(load, "load_catalog", lambda _: replace(whole, releases={"2026a": release}))
    settings = Settings(home=tmp_path, catalog=ROOT)
    assert named(settings, "2026a", gone).stem == named(settings, "", old).stem == old
    assert f"{gone} is now {old}, of release 2026a" in caplog.text
    with pytest.raises(UnknownName):
        named(settings, "2026a", "jupyter-typo-deb12-py311")
