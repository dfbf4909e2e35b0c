"""Tests that share programs run in one process: seen in a run of pytest with three."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.machine import ROOT

TESTS = """
import os
from pathlib import Path
import pytest
@pytest.mark.parametrize("number", range(8))
def test_note(number: int) -> None:
    with (Path({notes!r}) / str(os.getpid())).open("a") as note:
        note.write("{group} ")
"""


@pytest.mark.slow
def test_each_file_and_each_folder_of_real_tests_stays_in_one_process(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    files = {
        "tests/real/hub/test_a.py": "hub",
        "tests/real/hub/test_b.py": "hub",
        "tests/faults/test_a.py": "faults",
        "tests/unit/core/test_a.py": "core-a",
        "tests/unit/core/test_b.py": "core-b",
    }
    for name, group in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(TESTS.format(notes=str(notes), group=group))
    words = ("-p", "tests.support.distribution", "-p", "no:cacheprovider", "-n", "3", "--no-loadscope-reorder")
    argv = [sys.executable, "-m", "pytest", "-q", *words, "--dist", "loadscope", "--rootdir", ".", "."]
    # The plugin is this repository's, the package `tests` of the files is theirs: it has no __init__.py of its own.
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    processes = defaultdict(set)
    for note in notes.iterdir():
        for group in note.read_text().split():
            processes[group].add(note.name)
    assert {group: len(own) for group, own in processes.items()} == dict.fromkeys(files.values(), 1)
    assert len(list(notes.iterdir())) > 1
