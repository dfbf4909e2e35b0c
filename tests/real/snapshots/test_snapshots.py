"""Snapshots that people take, on real file systems: in a pool of btrfs, and as copies."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.migrations.snapshots import snapshot_actions
from flows.sessions.homes import snapshot_notes
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.lifecycle import Sessions
from tests.support.homes_alone import added, opened
from tests.support.waiting import wait_until


def test_a_snapshot_holds_the_home_of_its_moment(sessions: Sessions) -> None:
    ada = added(sessions)
    (folder_of(ada.home) / "notes").write_text("one")
    (folder_of(ada.home) / "link").symlink_to("/etc/shadow")
    made = snapshot_actions.take(sessions, "ada", "ada", called="first")
    (folder_of(ada.home) / "notes").write_text("two")
    (folder_of(ada.home) / "a folder").mkdir()
    (folder_of(ada.home) / "a folder/more").write_bytes(os.urandom(3_000_000))
    folder = Path(sessions.homes.snapshot_place("ada", made.id))
    assert (folder / "notes").read_text() == "one" and (folder / "link").is_symlink()
    second = snapshot_actions.take(sessions, "ada", "ada")
    (folder_of(ada.home) / "a folder/more").unlink()
    one, two = snapshot_actions.listed(sessions, "ada")
    pooled = folder_of(ada.home).is_relative_to(Pool(sessions._settings).folder)
    if pooled:
        assert one.changed == ("a\\ folder", "notes") and two.changed == ("a\\ folder/more",)
        assert two.size is not None and 3_000_000 <= two.size < 3_100_000 and one.size is not None and one.size < 50_000
    else:
        assert (one.changed, two.changed) == (None, None) and two.size is not None and two.size > 3_000_000
    for snapshot in (made, second):
        snapshot_actions.remove(sessions, "ada", snapshot.name, "ada")
    assert not list(folder.parent.iterdir()) and (folder_of(ada.home) / "notes").read_text() == "two"


def test_a_full_pool_is_told_and_nothing_is_left(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    sessions = opened(settings)
    ada = added(sessions)
    snapshot_actions.take(sessions, "ada", "ada", called="first")
    (folder_of(ada.home) / "large").write_bytes(b"")
    taken = Pool(settings).room().free - 100_000_000
    command.run(["fallocate", "--length", str(taken), Pool(settings).folder / "filler"], root=True)
    with pytest.raises(RefitError, match="no room for a snapshot") as told:
        snapshot_actions.take(sessions, "ada", "ada", called="second")
    assert "make room" in told.value.hint
    assert [one.snapshot.name for one in snapshot_actions.listed(sessions, "ada")] == ["first"]
    assert len(list(Path(sessions.homes.snapshot_place("ada", "x")).parent.iterdir())) == 1


def test_a_snapshot_in_the_pool_takes_no_time(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    sessions = opened(settings)
    (folder_of(added(sessions).home) / "data").write_bytes(os.urandom(200 << 20))

    def seconds() -> float:
        started = time.monotonic()
        made = snapshot_actions.take(sessions, "ada", "ada")
        took = time.monotonic() - started
        snapshot_actions.remove(sessions, "ada", made.id, "ada")
        return took

    wait_until(lambda: seconds() < 0.3)  # at its best, with its records, each of which waits for the disk


def test_snapshots_whose_records_are_lost_are_listed_and_gone_back_to(sessions: Sessions) -> None:
    ada = added(sessions)
    (folder_of(ada.home) / "notes").write_text("one")
    made = snapshot_actions.take(sessions, "ada", "ada", called="first", note="with a \x1b[2J note")
    doomed = snapshot_actions.take(sessions, "ada", "ada", called="doomed")
    (folder_of(ada.home) / "notes").write_text("two")
    lost = opened(
        sessions._settings.model_copy(update={"database_url": f"sqlite:///{sessions._settings.home}/other.db"})
    )
    lost.store.bring_home_back("ada", ada.uid)
    lost.store.bring_back(ada, should_run=False)
    assert [one.snapshot for one in snapshot_actions.listed(lost, "ada")] == [made, doomed]
    lost.homes.restore(ada, snapshot_actions.find(lost, "ada", "first").id)
    assert (folder_of(ada.home) / "notes").read_text() == "one"
    snapshot_actions.remove(lost, "ada", "doomed", "ada")
    assert [one.snapshot for one in snapshot_actions.listed(lost, "ada")] == [made]
    # A note that isn't whole, or that is about something else, counts for nothing.
    notes = snapshot_notes.folder_of(Path(lost.homes.snapshot_place("ada", made.id)).parents[1], "ada")
    assert [note.name for note in notes.iterdir()] == [made.id] and notes.stat().st_mode & 0o777 == 0o700
    (text,) = lost.homes.notes("ada")
    for wrong in (text[:-9], text.replace('"ada"', '"eve"'), "[]", "9" * 70_000, text.replace(made.id, "../../etc")):
        (notes / made.id).write_text(f"{wrong}\n")
        assert snapshot_actions.listed(lost, "ada") == ()
    lost.homes.remove("ada")
    assert not notes.exists()
