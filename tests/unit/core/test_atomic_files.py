"""Files that others may read while they are written."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.core.atomic_files import write_together, write_whole


def test_of_several_who_write_at_once_one_wins_with_all_that_it_wrote(tmp_path: Path) -> None:
    file, texts = tmp_path / "facts.json", [str(number) * 10_000 for number in range(10)]
    write_whole(file, texts[0])

    def seen_after(text: str) -> str:
        write_whole(file, text)
        return file.read_text()

    with ThreadPoolExecutor(len(texts)) as pool:
        assert set(pool.map(seen_after, texts * 20)) <= set(texts)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_a_private_file_is_for_its_owner_alone(private: bool, mode: int, tmp_path: Path) -> None:
    (file := tmp_path / "token").touch(mode=0o640)
    before = os.umask(0o022)
    try:
        write_whole(file, "secret", private=private)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == mode


def test_what_can_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (folder := tmp_path / "facts.json").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(folder, b"{}")
    assert list(tmp_path.iterdir()) == [folder]


def test_of_several_files_none_is_changed_when_one_draft_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("old")
    (tmp_path / "requirements").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_together(tmp_path, {"requirements": "new", "lock": "\ud800"})
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"lock": "old", "requirements": "old"}
    write_together(tmp_path, {"requirements": "new", "lock": "new"})
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"lock": "new", "requirements": "new"}
