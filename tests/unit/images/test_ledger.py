"""Inputs and results of builds: differences between two builds of a stage, and the record of them."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from flows.core.database import now, open_database
from flows.core.leases import LeaseLost, lease
from flows.images import stages
from flows.images.ledger import Ledger
from flows.images.stages import Difference, Entry, Kind, Stage

OLD = Stage("bundle", Kind.instructions, "base", "RUN true", {"a": b"1", "b": b"1"}, ("tmux=3.3", "vim=9"))
NEW = Stage("bundle", Kind.instructions, "base", "RUN true", {"a": b"2", "c": b"1"}, ("tmux=3.4",))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    yield open_database(f"sqlite:///{tmp_path}/refit.db")


def test_differences_name_every_input_that_changed_came_or_went() -> None:
    old, new = stages.inputs(OLD, "sha256:1", {"buildah": "1"}), stages.inputs(NEW, "sha256:2", {"buildah": "1"})
    results = {(difference.sort, difference.name): difference for difference in stages.differences(old, new)}
    assert results.keys() == {
        ("parent", "digest"),
        ("files", "a"),
        ("files", "b"),
        ("files", "c"),
        ("system", "tmux"),
        ("system", "vim"),
    }
    assert results["system", "tmux"] == Difference("system", "tmux", "3.3", "3.4")
    assert results["system", "vim"] == Difference("system", "vim", "9", None)
    assert results["files", "b"].new is None and results["files", "c"].old is None


def test_no_difference_means_the_same_key_and_the_other_way_round() -> None:
    same = stages.inputs(OLD, "sha256:1", {"buildah": "1"})
    assert stages.differences(same, same) == ()
    assert stages.key_of(same) == stages.key(OLD, "sha256:1", {"buildah": "1"})
    assert stages.key(OLD, "sha256:1", {}) != stages.key(NEW, "sha256:1", {})


def test_python_packages_are_inputs_by_name_and_version() -> None:
    lines = ("six==1.17.0 --hash=sha256:aa --hash=sha256:bb", 'tomli==2.0.1; python_version < "3.11"')
    stage = Stage("bundle", Kind.instructions, "base", "", requirements=lines)
    assert stages.inputs(stage, None, {})["python"] == {"six": "1.17.0", "tomli": "2.0.1"}


def test_the_digest_that_was_recorded_first_counts(database: Engine) -> None:
    ledger = Ledger(database)
    with lease(database, "stage 1") as mine:
        assert ledger.record("bundle", Entry("1", "sha256:a", {}, 2.0), mine) == "sha256:a"
        assert ledger.record("bundle", Entry("1", "sha256:b", {}, 3.0), mine) == "sha256:a"
        ledger.forget("1", mine)
        assert ledger.record("bundle", Entry("1", "sha256:b", {}, 3.0), mine) == "sha256:b"
    assert ledger.of(["1", "2"]) == {"1": Entry("1", "sha256:b", {}, 3.0)}
    assert ledger.digests(["1", "2"]) == {"1": "sha256:b"}


def test_a_builder_that_lost_its_lease_records_nothing(database: Engine) -> None:
    ledger = Ledger(database)
    with lease(database, "stage 1") as lost:
        pass
    with lease(database, "stage 1"), pytest.raises(LeaseLost):
        ledger.record("bundle", Entry("1", "sha256:a", {}, 1.0), lost)
    assert ledger.latest(["bundle"]) == {}


def test_the_latest_build_is_the_one_recorded_last_whatever_the_clock_said(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(database)
    with lease(database, "all") as mine:
        for key, days in {"1": 0, "2": 400, "3": -400, "4": 0}.items():
            moment = now() + timedelta(days=days)
            monkeypatch.setattr("flows.images.ledger.now", lambda moment=moment: moment)
            ledger.record("bundle", Entry(key, f"sha256:{key}", {}, 1.0), mine)
            assert ledger.latest(["bundle"])["bundle"].key == key


def test_the_latest_build_of_each_stage(database: Engine) -> None:
    ledger = Ledger(database)
    names = [f"stage-{number}" for number in range(1200)]  # more than one question may name
    with lease(database, "all") as mine:
        for number, name in enumerate(names[:3]):
            ledger.record(name, Entry(f"old-{number}", "sha256:old", {"files": {"a": "1"}}, 1.0), mine)
            ledger.record(name, Entry(f"new-{number}", "sha256:new", {"files": {"a": "2"}}, 0.1), mine)
    result = ledger.latest(names)
    assert set(result) == set(names[:3])
    assert result["stage-1"] == Entry("new-1", "sha256:new", {"files": {"a": "2"}}, 1.0)
