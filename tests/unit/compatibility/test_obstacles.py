"""Obstacles to moves in homes, and images and homes that can't be read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import cast

import pytest

from flows.catalog.model import Access
from flows.compatibility import failed_scans
from flows.compatibility import obstacles as module
from flows.compatibility import scan as scans
from flows.compatibility.judge import Finding, Verdict, verdict
from flows.compatibility.obstacles import PLAN_SECONDS, Scans, obstacle, obstacles
from flows.compatibility.read_home import BOUNDS, Bounds
from flows.compatibility.scan import Scan, UnreadableImage, of_image
from flows.compatibility.scan_inside import NotRead
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.sessions.engine import Engine
from flows.sessions.model import HomeRef, Session, TokenRef

ENGINE = cast("Engine", SimpleNamespace(on_this_machine=False))
OLD, NEW, BAD = (f"sha256:{digit * 64}" for digit in "123")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "refit")


@pytest.fixture
def in_cluster(tmp_path: Path) -> Settings:
    told = {"home": tmp_path / "cluster", "engine": "kubernetes", "kubernetes": {"namespace": "refit"}}
    return Settings.model_validate(told)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each image and each home was read; of `BAD` no report comes, `eve` has a home that none comes of."""
    times, lock = Counter[str](), Lock()

    def of(_settings: Settings, digest: str, _seconds: float) -> None:
        with lock:
            times[digest] += 1
        if digest == BAD:
            raise UnreadableImage("The image can't be read.", why="Its Python is broken.")

    def scanned(_settings: Settings, _engine: Engine, session: Session, image: str, _bounds: Bounds) -> Scan:
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
    return Session(name, "p", "2026a", image, 300_000, HomeRef("home"), TokenRef("token"), Access())


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


class Clock:
    """A monotonic clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


def later(monkeypatch: pytest.MonkeyPatch, minutes: float) -> None:
    """Let it be so many minutes later for failures."""
    monkeypatch.setattr(failed_scans, "now", lambda: now() + timedelta(minutes=minutes))


def test_what_can_not_be_read_is_not_tried_again_by_each_plan(
    settings: Settings, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = {"eve": (session("eve"), NEW), "zoe": (session("zoe", BAD), NEW)}
    told = obstacles(settings, ENGINE, moving)
    assert all(obstacles(settings, ENGINE, moving) == told for _ in range(2)) and told.unread.keys() == moving.keys()
    assert (read["eve"], read[BAD]) == (1, 1)
    later(monkeypatch, 50)
    obstacles(settings, ENGINE, moving)
    assert (read["eve"], read[BAD]) == (2, 1)


def test_a_failure_counts_for_a_while_and_for_what_it_depends_on_alone(
    settings: Settings, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for moved in (session("eve"), replace(session("eve"), generation=2), session("eve", f"sha256:{'4' * 64}")):
        obstacles(settings, ENGINE, {"eve": (moved, NEW)})
    assert read["eve"] == 3
    obstacles(settings, ENGINE, {"zoe": (session("zoe", BAD), NEW)})
    later(monkeypatch, 70)
    obstacles(settings, ENGINE, {"zoe": (session("zoe", BAD), NEW)})
    assert read[BAD] == 2


def test_failures_that_count_no_more_leave_no_files(settings: Settings, read: Counter[str]) -> None:
    obstacles(settings, ENGINE, {"zoe": (session("zoe", BAD), NEW)})
    (file,) = (settings.home / "scans" / "failed").iterdir()
    os.utime(file, (0, 0))
    obstacles(settings, ENGINE, {"eve": (session("eve"), NEW)})
    assert file not in {*(settings.home / "scans" / "failed").iterdir()} != set()


def test_an_image_that_can_not_be_had_is_tried_again_sooner_than_one_that_can_not_be_read(
    settings: Settings, in_cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[str]()

    def no_room(_settings: Settings, digest: str, _seconds: float) -> None:
        tried.append(digest)
        raise RefitError("No Pod can be had.")

    monkeypatch.setattr(module, "of_image", no_room)
    moving = {"ada": (session("ada"), NEW)}
    for minutes, times in ((0, 1), (14, 1), (16, 2)):
        later(monkeypatch, minutes)
        assert obstacles(in_cluster, ENGINE, moving).unread == {"ada": "No Pod can be had."}
        assert tried.count(NEW) == times
    tried.clear()
    for times in (1, 2):  # this machine may have pulled it since
        obstacles(settings, ENGINE, moving)
        assert tried.count(NEW) == times


def test_the_homes_of_a_plan_are_read_for_so_long_and_the_next_one_goes_on(
    settings: Settings, read: Counter[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = module.scan

    def slow(*args: object) -> Scan:
        clock.seconds += 20
        return scan(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "scan", slow)
    moving = {f"s{number}": (session(f"s{number}"), NEW) for number in range(10)}
    begun, unread = clock.seconds, [*moving]
    while unread:
        told = obstacles(settings, ENGINE, moving, at_once=1)
        assert clock.seconds - begun <= PLAN_SECONDS and {*told.unread.values()} <= {"not reached in time"}
        assert len(told.unread) < len(unread), "each plan gets on"
        begun, unread = clock.seconds, [*told.unread]
    assert [read[name] for name in moving] == [1] * 10


def test_images_of_a_plan_are_read_for_so_long_and_none_is_remembered_that_was_not_reached(
    in_cluster: Settings, read: Counter[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, lock = list[float](), Lock()

    def slow(_settings: Settings, digest: str, seconds: float) -> None:
        with lock:
            read[digest] += 1
            given.append(seconds)
            clock.seconds += 60
        raise RefitError("No Pod can be had.")

    monkeypatch.setattr(module, "of_image", slow)
    monkeypatch.setattr(module, "AT_ONCE", 1)
    moving = {f"s{number}": (session(f"s{number}", f"sha256:{str(number) * 64}"), NEW) for number in range(4, 9)}
    told = obstacles(in_cluster, ENGINE, moving)
    assert given == [PLAN_SECONDS, PLAN_SECONDS - 60] and sum(read.values()) == 2
    assert "not reached in time" in told.unread.values()
    obstacles(in_cluster, ENGINE, moving)
    assert sum(read.values()) == 4 and {*read.values()} == {1}


def test_without_time_nothing_is_read_and_what_is_kept_counts(settings: Settings, read: Counter[str]) -> None:
    moving = {"ada": (session("ada"), NEW), "bob": (session("bob"), NEW)}
    blocked = obstacles(settings, ENGINE, {"bob": moving["bob"]}).blocked
    read.clear()
    told = obstacles(settings, ENGINE, moving, seconds=0)
    assert told == Scans(blocked, {"ada": "not reached in time"}) and not read
    spared = dict.fromkeys(moving, "its wave isn't open")
    assert obstacles(settings, ENGINE, moving, spared=spared) == Scans(blocked, {"ada": "its wave isn't open"})
    assert not read


def test_a_home_gets_as_much_time_as_is_left(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    until = clock.seconds + PLAN_SECONDS
    volumes = tuple(SimpleNamespace(shared=number == 0) for number in range(4))
    many = cast("Session", SimpleNamespace(volumes=volumes))
    for late, one, four in ((0, 30.0, 15.0), (20, 30.0, 10.0), (30, 30.0, None), (45, 15.0, None), (55, None, None)):
        clock.seconds = until - PLAN_SECONDS + late
        bounds = [module._bounds(ENGINE, chosen, until) for chosen in (session("ada"), many)]
        assert [each and each.seconds for each in bounds] == [one, four]
    clock.seconds = until - 35
    here = cast("Engine", SimpleNamespace(on_this_machine=True))
    assert module._bounds(here, session("ada"), until) == BOUNDS


def test_a_home_for_which_a_person_waits_is_read_again_after_a_failure(settings: Settings, read: Counter[str]) -> None:
    for _ in range(2):
        assert not obstacle(settings, ENGINE, session("eve"), NEW)
    assert read["eve"] == 2
    assert obstacle(settings, ENGINE, session("bob"), NEW).endswith("; `refit session scan bob`")
    assert not obstacle(settings, ENGINE, session("zoe"), BAD) and not read["zoe"]
