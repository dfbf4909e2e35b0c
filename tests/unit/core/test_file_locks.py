"""Locks of this machine: alone, shared, and free when their holder is gone."""

from __future__ import annotations

from pathlib import Path

from flows.core.file_locks import if_alone, one_at_a_time, taken

FLOWS = Path(__file__).parents[3] / "flows"


def test_a_lock_is_held_as_long_as_its_file_is_open(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = taken(path)
    assert held and path.stat().st_mode & 0o777 == 0o600
    assert taken(path, wait=False) is None and taken(path, shared=True, wait=False) is None
    held.write("kept")
    held.close()
    with if_alone(path) as free:
        assert free and path.read_text() == "kept"


def test_several_share_a_lock_and_nobody_else_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with one_at_a_time(path, shared=True), one_at_a_time(path, shared=True), if_alone(path) as free:
        assert not free
    with one_at_a_time(path):
        assert taken(path, shared=True, wait=False) is None


def test_nothing_else_locks_files() -> None:
    others = [path for path in FLOWS.rglob("*.py") if "flock(" in path.read_text() and path.name != "file_locks.py"]
    assert not others, "see flows/core/file_locks.py"
