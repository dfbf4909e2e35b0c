"""Files that others may read while they are written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.files import write_whole


def test_of_several_who_write_at_once_one_wins_with_all_that_it_wrote(tmp_path: Path) -> None:
    file, texts = tmp_path / "facts.json", [str(number) * 10_000 for number in range(10)]
    write_whole(file, texts[0])

    def seen_after(text: str) -> str:
        write_whole(file, text)
        return file.read_text()

    with ThreadPoolExecutor(len(texts)) as pool:
        assert set(pool.map(seen_after, texts * 20)) <= set(texts)
    assert list(tmp_path.iterdir()) == [file]


def test_what_can_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (folder := tmp_path / "facts.json").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(folder, b"{}")
    assert list(tmp_path.iterdir()) == [folder]
