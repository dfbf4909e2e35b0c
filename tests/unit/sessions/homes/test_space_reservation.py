"""Room on a disk, which several copies count on at once; the disk is the one of the test's own folder."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest

from flows.sessions.homes.space_reservation import SPARE, NoRoom, lacking, reserved
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def most(tmp_path: Path) -> int:
    """A size of which one copy fits on the disk, and two don't, whatever else goes on there."""
    size = int((shutil.disk_usage(tmp_path).free - SPARE) / 1.1 * 0.7)
    assert size > 0
    return size


def test_a_copy_grows_while_it_is_made_and_others_keep_a_rest() -> None:
    assert lacking(1_000_000_000, 1_100_000_000 + SPARE) == 0
    assert lacking(1_000_000_000, 1_100_000_000) == SPARE


@pytest.mark.slow
def test_what_one_copy_counts_on_another_waits_for(tmp_path: Path, most: int) -> None:
    begun = Event()

    def second() -> None:
        with reserved(tmp_path, tmp_path, most):
            begun.set()

    waiting = Thread(target=second)
    with reserved(tmp_path, tmp_path, most):
        with reserved(tmp_path, tmp_path, 1):  # there is room for small ones meanwhile
            pass
        waiting.start()
        assert not begun.wait(0.5)
    assert begun.wait(PATIENCE)
    waiting.join()
    wait_until(lambda: [path.suffix for path in tmp_path.iterdir()] == [".lock"])


def test_what_never_fits_is_refused_at_once(tmp_path: Path, most: int) -> None:
    with pytest.raises(NoRoom, match="are missing"), ExitStack() as stack:
        stack.enter_context(reserved(tmp_path, tmp_path, most))
        stack.enter_context(reserved(tmp_path, tmp_path, 2 * most))


def test_a_note_that_nobody_holds_counts_for_nothing(tmp_path: Path, most: int) -> None:
    left = tmp_path / f"{tmp_path.stat().st_dev}-{most}-killed"
    left.touch()
    with reserved(tmp_path, tmp_path, most):
        assert not left.exists()


def test_where_copies_take_no_space_nothing_is_looked_for(tmp_path: Path) -> None:
    with reserved(tmp_path / "absent", tmp_path / "absent", 0):
        assert not (tmp_path / "absent").exists()
