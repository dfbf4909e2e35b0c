"""Parts of the commands of people's own profiles that need no build."""

from __future__ import annotations

import os
from pathlib import Path

from flows.cli.own_profiles import MOST_LOG, log_of


def test_of_a_step_that_fails_the_last_lines_are_shown_and_of_others_none(tmp_path: Path) -> None:
    def log(name: str, text: str, at: float) -> None:
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (at, at))

    log("mine-deb12-py311-aaa.log", "first\n", 100)
    log("mine-custom-deb12-py311-bbb.log", "one\ntwo\nthree\n", 200)
    log("mines-deb12-py311-ccc.log", "of somebody else\n", 300)
    assert log_of(tmp_path, "mine", 50, 2) == "two\nthree"
    assert log_of(tmp_path, "mine", 50, 0) == "" == log_of(tmp_path, "mine", 250, 9)
    log("mine-deb12-py311-aaa.log", "x" * MOST_LOG + "\nlast\n", 400)
    assert log_of(tmp_path, "mine", 50, 1) == "last"
    assert len(log_of(tmp_path, "mine", 50, 1000)) <= MOST_LOG
