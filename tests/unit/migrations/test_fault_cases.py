"""Each fault case of docs/sessions.md has tests with its number."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
DOCS = TESTS.parent / "docs" / "sessions.md"
CASES = range(1, 21)


def test_every_fault_case_has_a_test_with_its_number_and_the_docs_name_them() -> None:
    defined = {
        name: int(number)
        for file in TESTS.rglob("*.py")
        for name, number in re.findall(r"^\s*def (test_f0*(\d+)_\w+)", file.read_text(), re.MULTILINE)
    }
    assert set(defined.values()) == set(CASES)
    rows = dict(re.findall(r"^\| F(\d+) \|[^|]*\|([^|]*)\|", DOCS.read_text(), re.MULTILINE))
    assert list(map(int, rows)) == list(CASES)
    for number, names in rows.items():
        listed = re.findall(r"`(test_\w+)`", names)
        assert listed and {defined.get(name) for name in listed} == {int(number)}, f"F{number}: {listed}"
