"""A person's folder and archives: links, special files and floods, also while somebody swaps them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from flows.authoring.own import read_folder, reading
from flows.authoring.own.read_folder import Refused
from flows.core.documents import Mistakes

ME = os.getuid()


def read(folder: Path, files: int = 100, size: int = 1000, depth: int = 4) -> dict[str, bytes]:
    return read_folder.read(read_folder.opened(str(folder)), files, size, depth)


def test_files_are_read_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "os").mkdir()
    (tmp_path / "os" / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("3")
    assert read(tmp_path) == {"os/a": b"1", "b": b"2"}


@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "above"])
def test_no_link_and_no_special_file_is_followed(tmp_path: Path, kind: str) -> None:
    folder, secret = tmp_path / "own", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    (secret / "shadow").write_text("told to nobody")
    if kind == "file":
        (folder / "display.txt").symlink_to(secret / "shadow")
    elif kind == "folder":
        (folder / "os").symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(folder / "display.txt")
    else:
        (folder / "x").symlink_to(secret)
        folder = folder / "x"
    with pytest.raises((Refused, OSError)):
        read(folder)


def test_bounds_of_files_bytes_and_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c" / "d").write_text("x" * 100)
    assert read(tmp_path)
    for bounds in ({"files": 3}, {"size": 99}, {"depth": 3}):
        with pytest.raises(Refused):
            read(tmp_path, **bounds)


def test_swapping_a_folder_for_a_link_meanwhile_never_tells_another_file(tmp_path: Path) -> None:
    folder, secret, over = tmp_path / "own", tmp_path / "secret", threading.Event()
    secret.mkdir()
    (secret / "a").write_text("told to nobody")
    folder.mkdir()
    (folder / "real").mkdir()
    (folder / "real" / "a").write_text("mine")
    (folder / "link").symlink_to(secret)

    def swap() -> None:
        while not over.is_set():
            for name in ("real", "link"):
                (folder / name).rename(folder / "os")
                (folder / "os").rename(folder / name)

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[bytes] = set()
    try:
        for _ in range(3000):
            try:
                seen |= {*read(folder).values()}
            except (Refused, OSError):
                continue
    finally:
        over.set()
        thread.join()
    assert b"told to nobody" not in seen


def test_another_program_reads_with_the_rights_that_it_is_given(tmp_path: Path) -> None:
    """Root's own files are nobody's to read."""
    (tmp_path / "display.txt").write_text("mine")
    assert reading.from_folder(tmp_path, ME) == {"display.txt": b"mine"}
    if ME == 0:
        with pytest.raises(Mistakes):
            reading.from_folder(tmp_path, reading.NOBODY)
