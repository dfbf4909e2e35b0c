"""Locks before a date: what is left out, and what an index has to say for that."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.locks import cutoff
from flows.locks.pipfile import Pipfile
from tests.support.package_index import make_wheel, serve_dated_index

DAY = date(2026, 2, 1)


def lock(*digests: str) -> dict[str, object]:
    entry = {"version": "==1.0", "hashes": [f"sha256:{digest}" for digest in digests]}
    return {"_meta": {"hash": {}}, "default": {"ant": entry}}


def test_files_that_came_on_that_day_or_later_are_left_out() -> None:
    times = {
        "before": datetime(2026, 1, 31, 23, 59, tzinfo=UTC),
        "then": datetime(2026, 2, 1, tzinfo=UTC),
        "later": datetime(2026, 3, 1, tzinfo=UTC),
    }
    # One that the index doesn't have is from a folder of wheels.
    assert cutoff.before(lock(*times, "own"), {"ant": times}, DAY) == lock("before", "own")
    with pytest.raises(RefitError, match=r"No file of ant 1.0 was uploaded before 2026-02-01"):
        cutoff.before(lock("then"), {"ant": times}, DAY)


def test_without_a_cutoff_nothing_is_asked(tmp_path: Path) -> None:
    pipfile = Pipfile(tmp_path, (), "", "", ())
    assert cutoff.settle(lock("a"), pipfile, None, Settings(home=tmp_path)) == lock("a")
    assert cutoff.environment(None) == {}
    assert cutoff.environment(DAY) == {"PIP_UPLOADED_PRIOR_TO": "2026-02-01T00:00:00+00:00"}


@pytest.mark.parametrize("time", ["2026-01-01T10:00:00.123456Z", ""])
def test_an_index_has_to_say_when_files_were_uploaded(tmp_path: Path, time: str) -> None:
    wheel = make_wheel(tmp_path, "ant", "1.0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with serve_dated_index({wheel: time}) as url:
        source = {"name": "own", "url": url}
        pipfile = Pipfile(tmp_path, ("packages",), "", "", (source,), {"packages": {"ant": "*"}})
        if time:
            assert cutoff.settle(lock(digest), pipfile, DAY, Settings(home=tmp_path)) == lock(digest)
        else:
            with pytest.raises(RefitError, match="doesn't say when its files were uploaded") as error:
                cutoff.settle(lock(digest), pipfile, DAY, Settings(home=tmp_path))
            assert "ant" in error.value.why
