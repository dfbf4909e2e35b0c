"""Snapshots that people take of sessions, which are simulated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from flows.core.errors import RefitError, UnknownName
from flows.migrations.snapshots import snapshot_actions
from flows.sessions.events import Kind as Event
from flows.sessions.history import History
from flows.sessions.homes.space_reservation import NoRoom
from flows.sessions.model import Session
from flows.sessions.snapshots.model import LONGEST_NAME, LONGEST_NOTE, Kind, name_for
from flows.sessions.snapshots.records import SnapshotRecords, SnapshotTaken
from tests.support.simulated.fleet import Fleet
from tests.support.simulated.world import Killed, Point


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    return sessions.add(1, sessions.image("old"))


def take(sessions: Fleet, name: str, called: str = "", note: str = "") -> str:
    return snapshot_actions.take(sessions.sessions, name, "ada", called=called, note=note).name


def names(sessions: Fleet, name: str) -> list[str]:
    return [one.snapshot.name for one in snapshot_actions.listed(sessions.sessions, name)]


def happening(sessions: Fleet, verb: str, when: str, what: Callable[[], None]) -> None:
    left = [what]

    def meanwhile(point: Point) -> None:
        if (point.verb, point.when) == (verb, when) and left:
            left.pop()()

    sessions.world.meanwhile = meanwhile


def test_a_snapshot_is_taken_listed_and_removed(sessions: Fleet, ada: Session) -> None:
    take(sessions, ada.name, "before-pandas3", "all tests pass")
    [one] = snapshot_actions.listed(sessions.sessions, ada.name)
    assert (one.snapshot.by, one.snapshot.kind, one.snapshot.note) == ("ada", Kind.named, "all tests pass")
    assert (one.snapshot.image, one.snapshot.profile, one.changed) == (ada.image, ada.profile, ())
    with sessions.world.person():
        sessions.world.work(ada.name, "more")
    [one] = snapshot_actions.listed(sessions.sessions, ada.name)
    assert one.changed is not None and len(one.changed) == 1
    snapshot_actions.remove(sessions.sessions, ada.name, "before-pandas3", "bob")
    assert names(sessions, ada.name) == [] and not sessions.world.snapshots
    told = History(sessions.database).events(ada.name, kinds=(Event.snapshot_taken, Event.snapshot_removed))
    assert [(event.kind, event.by, event.data["name"]) for event in told] == [
        (Event.snapshot_taken, "ada", "before-pandas3"),
        (Event.snapshot_removed, "bob", "before-pandas3"),
    ]


def test_of_a_stopped_session_too_and_without_a_name(sessions: Fleet, ada: Session) -> None:
    with sessions.world.person():
        sessions.sessions.stop(ada.name)
    made = {take(sessions, ada.name) for _ in range(3)}
    assert len(made) == 3 and set(names(sessions, ada.name)) == made


@pytest.mark.parametrize(
    "called", ["", "..", ".", "a/b", "-rf", "Ana", "a" * (LONGEST_NAME + 1), "a b", "a\n", "x.", "\u0430da"]
)
def test_a_name_that_could_be_something_else_is_refused(sessions: Fleet, ada: Session, called: str) -> None:
    if not called:
        with pytest.raises(RefitError, match="characters"):
            take(sessions, ada.name, note="x" * (LONGEST_NOTE + 1))
        return
    with pytest.raises(RefitError, match="can't be the name of a snapshot"):
        take(sessions, ada.name, called)
    assert not sessions.world.snapshots


def test_no_two_of_a_session_have_the_same_name(sessions: Fleet, ada: Session) -> None:
    bob = sessions.add(2, ada.image)
    take(sessions, ada.name, "one")
    with pytest.raises(SnapshotTaken, match="already"):
        take(sessions, ada.name, "one")
    take(sessions, bob.name, "one")
    snapshot_actions.remove(sessions.sessions, ada.name, "one", "ada")
    assert names(sessions, bob.name) == ["one"]
    with pytest.raises(UnknownName, match="no snapshot 'two'"):
        snapshot_actions.remove(sessions.sessions, bob.name, "two", "ada")
    with pytest.raises(UnknownName):
        take(sessions, "nobody")


@pytest.mark.parametrize("moment", ["before", "middle", "after"])
def test_whoever_is_killed_leaves_nothing_half_made(sessions: Fleet, ada: Session, moment: str) -> None:
    def kill() -> None:
        sessions.world.alive = False
        raise Killed

    happening(sessions, "copy", moment, kill)
    with pytest.raises(Killed):
        take(sessions, ada.name, "one")
    sessions.world.alive = True
    assert names(sessions, ada.name) == []
    take(sessions, ada.name, "one")
    assert names(sessions, ada.name) == ["one"] and len(sessions.world.snapshots) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_whoever_is_killed_over_a_removal_has_removed_it(sessions: Fleet, ada: Session, moment: str) -> None:
    def kill() -> None:
        sessions.world.alive = False
        raise Killed

    take(sessions, ada.name, "one")
    happening(sessions, "forget", moment, kill)
    with pytest.raises(Killed):
        snapshot_actions.remove(sessions.sessions, ada.name, "one", "ada")
    sessions.world.alive = True
    assert names(sessions, ada.name) == []
    take(sessions, ada.name, "two")
    assert len(sessions.world.snapshots) == 1


def test_where_there_is_no_room_nothing_is_left(sessions: Fleet, ada: Session) -> None:
    def full() -> None:
        raise NoRoom("there is no room")

    for verb, when in (("check room", "before"), ("copy", "middle")):
        happening(sessions, verb, when, full)
        with pytest.raises(NoRoom):
            take(sessions, ada.name, "one")
        assert not sessions.world.snapshots and not SnapshotRecords(sessions.database).left(ada.name)


def test_a_session_has_so_many_snapshots_by_people_at_most(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_actions, "MOST", 3)
    for number in range(3):
        take(sessions, ada.name, f"n{number}")
    with pytest.raises(RefitError, match="has 3 snapshots, and may have no more than 3") as refused:
        take(sessions, ada.name, "more")
    assert "remove-snapshot" in refused.value.hint and names(sessions, ada.name) == ["n0", "n1", "n2"]
    snapshot_actions.remove(sessions.sessions, ada.name, "n1", "ada")
    assert take(sessions, ada.name, "more") == "more"


def test_a_list_of_many_holds_the_session_for_some_seconds_at_most(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes a second: of ten the newest are looked at."""
    clock = [0.0]

    def touched(*_: object) -> tuple[str, ...]:
        clock[0] += 1.0
        return ("notes",)

    for number in range(10):
        take(sessions, ada.name, f"n{number}")
    monkeypatch.setattr(type(sessions.sessions.homes), "touched", touched)
    monkeypatch.setattr(snapshot_actions.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(snapshot_actions, "LIST_SECONDS", 4.0)
    listed = snapshot_actions.listed(sessions.sessions, ada.name)
    assert [one.changed for one in listed] == [None] * 6 + [("notes",)] * 4


def test_a_purged_home_takes_its_snapshots_along(sessions: Fleet, ada: Session) -> None:
    take(sessions, ada.name, "one")
    with sessions.world.person():
        sessions.sessions.remove(ada.name)
        assert len(SnapshotRecords(sessions.database).all()) == 1
        sessions.sessions.remove(ada.name, purge=True)
    assert SnapshotRecords(sessions.database).all() == ()


def test_the_moment_is_the_name_with_a_number_where_it_is_taken(sessions: Fleet) -> None:
    at = datetime(2026, 11, 25, 7, 6, 5, tzinfo=UTC)
    assert name_for(Kind.unnamed, at, ()) == "20261125-070605"
    assert name_for(Kind.safety, at, ()) == "before-rollback-20261125-070605"
    assert name_for(Kind.unnamed, at, ("20261125-070605", "20261125-070605-2")) == "20261125-070605-3"
