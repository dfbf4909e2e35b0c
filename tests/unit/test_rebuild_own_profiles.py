"""Nights of people's own profiles: one that fails stops no other, and its owner alone is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prefect.logging import disable_run_logger
from pydantic import SecretStr

from flows import rebuild_own_profiles as night
from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.publishing.own_build_results import BuildResults
from flows.publishing.own_profiles import LimitReached, OwnProfile, OwnProfiles


def test_one_that_fails_is_told_to_its_owner_and_stops_no_other(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, built = list[tuple[object, ...]](), list[str]()
    addresses = {"ada": (SecretStr("json://ada"),), "*": (SecretStr("json://all"),)}
    own = settings.model_copy(update={"notify_owners": addresses})
    records = OwnProfiles(open_database(own.database))
    one = OwnProfile("a", "ada", "runtime-a-deb12-py311", "2026a", {}, (), now())
    for name, owner in (("a", "ada"), ("b", "bob"), ("c", "eve")):
        records.take(replace(one, bundle=name, owner=owner, profile=f"runtime-{name}-deb12-py311"), PersonalBuilds())

    def build(name: str) -> None:
        built.append(name)
        if name == "a":
            raise RefitError("It fails the check 'pip'.")
        if name == "b":
            raise LimitReached("bob has built enough.")

    monkeypatch.setattr(night, "load_settings", lambda: own)
    monkeypatch.setattr(night, "build_own_profile", build)
    monkeypatch.setattr(night.operator_alerts, "send_to", lambda *words: told.append(words) or ())
    with disable_run_logger():
        failed = night.rebuild_own_profiles.fn()
    assert failed == {"a": "It fails the check 'pip'."}
    assert built == ["a", "b", "c"]
    [(to, title, text, _)] = told
    assert [url.get_secret_value() for url in to] == ["json://ada"]
    assert "runtime-a-deb12-py311" in str(title) and "fails the check" in str(text)
    results = BuildResults(records.database)
    assert [results.unseen(owner) for owner in ("ada", "bob", "eve")] == [1, 0, 0]
    results.mark_seen("ada", now())
    with disable_run_logger():
        night.rebuild_own_profiles.fn()
    assert results.unseen("ada") == 0  # the same reason once more is no news
