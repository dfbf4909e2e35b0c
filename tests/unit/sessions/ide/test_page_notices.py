"""Notices in a file of a home, as VS Code finds them; the session's programs run here in its home."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.programs import command
from flows.sessions.homes.folders import ref_of
from flows.sessions.ide.page_notices import OnPage, Windows
from flows.sessions.model import Session, TokenRef
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.world import World

ANSWERS = (("now", "Move now"), ("2h", "In 2 hours"))
FILE = ".local/state/refit/notice.json"


class Here(SimulatedEngine):
    """An engine whose one session is a folder."""

    def __init__(self, home: Path) -> None:
        super().__init__(World())
        self._home = home

    def execute(self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = 0) -> str:
        return command.run(list(argv), env={"HOME": str(self._home)}, stdin=stdin, limit=limit).stdout


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    access = Access(port=8888, notices=FILE)
    session = Session(
        "ada", "vscode-minimal-deb12-py311", "2026a", "sha256:1", 1, ref_of(tmp_path), TokenRef(str(tmp_path)), access
    )
    return Windows(Here(tmp_path), session)


def say(home: Path, text: str) -> None:
    (home / f"{FILE}.heard").write_text(text)


@pytest.mark.slow
def test_a_notice_is_left_shown_answered_and_taken_away(windows: Windows, tmp_path: Path) -> None:
    assert windows.notices() == {}
    windows.leave_notice("sha256:7", "A new image", 'It "comes"\nsoon', ANSWERS)
    left = json.loads((tmp_path / FILE).read_text())
    assert left["text"] == 'It "comes"\nsoon' and left["answers"] == [list(answer) for answer in ANSWERS]
    assert not windows.shown("sha256:7", limit=0)
    say(tmp_path, json.dumps({"id": "sha256:7", "shown": True, "answer": "2h"}))
    assert windows.shown("sha256:7", limit=0) and windows.notices()["sha256:7"].answer == "2h"
    windows.forget_answer("sha256:7")
    assert windows.notices() == {"sha256:7": OnPage("sha256:7", True, "")}
    windows.leave_notice("sha256:8", "A newer image", "")
    assert not windows.shown("sha256:8", limit=0)  # what was shown was another
    windows.remove()
    assert not list((tmp_path / FILE).parent.iterdir())


@pytest.mark.slow
def test_a_notice_of_less_weight_takes_the_place_of_its_like_alone(windows: Windows, tmp_path: Path) -> None:
    def left() -> str:
        return str(json.loads((tmp_path / FILE).read_text())["id"])

    windows.add_notice("build 1", "It was built", "It was built.", kind="build ")
    assert left() == "build 1"
    windows.add_notice("build 2", "It wasn't", "It wasn't.", kind="build ")
    assert left() == "build 2"
    windows.leave_notice("sha256:7", "A new image", "x" * 20_000, ANSWERS)
    windows.add_notice("build 3", "It was built", "It was built.", kind="build ")
    assert left() == "sha256:7"
    windows.leave_notice("sha256:8", "A new image", "soon")
    windows.add_notice("build 3", "It was built", "It was built.", kind="build ")
    assert left() == "sha256:8" and [path.name for path in (tmp_path / FILE).parent.iterdir()] == ["notice.json"]
    windows.remove()
    (tmp_path / FILE).write_text("the owner's own")
    windows.add_notice("build 3", "It was built", "It was built.", kind="build ")
    assert (tmp_path / FILE).read_text() == "the owner's own"


@pytest.mark.slow
@pytest.mark.parametrize("said", ["", "[]", '{"id": 1', '{"id": "sha256:7"}'])
def test_what_people_write_there_themselves_is_no_answer(windows: Windows, tmp_path: Path, said: str) -> None:
    windows.leave_notice("sha256:7", "A new image", "", ANSWERS)
    say(tmp_path, said)
    assert windows.notices() == {}
