"""Obstacles to moves in homes, and images and homes that can't be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import cast

import pytest

from flows.catalog.model import Access
from flows.compatibility import obstacles as module
from flows.compatibility import scan as scans
from flows.compatibility.judge import Finding, Verdict, verdict
from flows.compatibility.obstacles import Scans, obstacles
from flows.compatibility.scan import Scan, of_image
from flows.compatibility.scan_inside import NotRead
from flows.core.errors import RefitError
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.sessions.engine import Engine
from flows.sessions.model import HomeRef, Session

ENGINE = cast("Engine", None)
OLD, NEW, BAD = (f"sha256:{digit * 64}" for digit in "123")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "refit")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each image and each home was read; of `BAD` no report comes, `eve` has a home that none comes of."""
    times, lock = Counter[str](), Lock()

    def of(_settings: Settings, digest: str) -> None:
        with lock:
            times[digest] += 1
        if digest == BAD:
            raise RefitError("The image can't be read.", why="Its Python is broken.")

    def scanned(_settings: Settings, _engine: Engine, session: Session, image: str) -> Scan:
        with lock:
            times[session.name] += 1
        if session.name == "eve":
            raise NotRead("eve", "its image has no python3")
        found = (Finding(Verdict.blocked, "p" * 9_000, "what"),) if session.name == "bob" else ()
        return Scan(session.name, session.image, image, verdict(found), found, 1)

    monkeypatch.setattr(module, "of_image", of)
    monkeypatch.setattr(module, "scan", scanned)
    yield times


def session(name: str, image: str = OLD) -> Session:
    return Session(name, "p", "2026a", image, 300_000, HomeRef("home"), Path("token"), Access())


def test_each_image_is_read_once_and_a_home_that_can_not_be_read_keeps_nobody(
    settings: Settings, read: Counter[str]
) -> None:
    names = ("ada", "bob", "eve", "ida", "max")
    moving = {name: (session(name), NEW) for name in names} | {"zoe": (session("zoe", BAD), NEW)}
    told = obstacles(settings, ENGINE, moving, at_once=8)
    assert told.unread == {"eve": "its image has no python3", "zoe": "The image can't be read."}
    assert told.blocked.keys() == {"bob"}
    assert len(told.blocked["bob"]) < 600 and told.blocked["bob"].endswith("; `refit session scan bob`")
    assert read == {OLD: 1, NEW: 1, BAD: 1, **dict.fromkeys(names, 1)}
    del moving["eve"], moving["zoe"]
    obstacles(settings, ENGINE, moving)
    assert all(read[name] == 1 for name in moving)  # what a scan has found is kept for some hours
    assert obstacles(settings, ENGINE, {}) == Scans()


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ProgramFailed(["python3"], "ended with exit code 127", "\x1b[2Jpython3: not found", None, 127), "not found"),
        ("no report", "no report on it"),
        ("[" * 100_000, "no report on it"),
    ],
    ids=["no Python", "no report", "depth"],
)
def test_an_image_that_can_not_be_read_is_an_error_for_people_and_nothing_is_kept_of_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, failure: str | Exception, said: str
) -> None:
    def run(*_: object) -> str:
        if isinstance(failure, str):
            return failure
        raise failure

    monkeypatch.setattr(scans, "run_in_image", run)
    with pytest.raises(RefitError, match=said) as refused:
        of_image(settings, NEW)
    assert refused.value.what.isprintable()
    assert not [*settings.folder("cache", "compatibility").iterdir()]
