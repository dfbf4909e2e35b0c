"""What benchmarks write down, and the table that is made of it. Nothing is measured here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bench import results
from bench.results import Row

COLD = Row("cold", "s", "≤ 20 s", 16.0, True, {"naive": 78.0, "layers": 34.9}, "4 cores", {"buildah": "1.28.2"})
STEPS = Row("steps", "steps", "exactly 10", 24, False)


def test_a_new_figure_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results.save([COLD, STEPS], file)
    results.save([replace(COLD, ours=15.0)], file)
    assert results.load(file) == (replace(COLD, ours=15.0), STEPS)
    assert json.loads(file.read_text())[0]["ratio"] == 5.2


def test_the_table_says_what_was_not_reached() -> None:
    assert results.table([COLD, STEPS]).splitlines()[2:] == [
        "| cold | ≤ 20 s | 16 s | naive 78; layers 34.9 | 4.88 |",
        "| steps | exactly 10 | 24 steps (not reached) | – | – |",
    ]


def test_versions_are_those_of_the_programs() -> None:
    assert results.versions("bash")["bash"].startswith("GNU bash")
