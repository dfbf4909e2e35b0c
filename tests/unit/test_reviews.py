"""The table of an outside test's findings: all tests that it names are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.activity import jupyter, programs, rest
from tests.support.lies import LIES
from tests.support.machine import ROOT

TESTS = ROOT / "tests"
TEXT = (ROOT / "docs" / "reviews.md").read_text()
LINES = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| finding |")]
CASES = (TESTS / "real" / "test_grafts.py").read_text()
NAMES = {
    "row": {row.name for row in (*programs.ROWS, *jupyter.ROWS, *rest.ROWS)},
    "lie": set(LIES),
    "case": set(re.findall(r'Case\(\s*"([^"]+)"', CASES)),
}
FINDINGS = 130  # at least, in both reports


def named(text: str) -> Iterator[tuple[str, str, str]]:
    """File, function and parameter of each test that is named by its path."""
    for file, function, _, parameter in re.findall(r"`([\w/]+\.py)::(\w+)(\[([^\]`]+)\])?`", text):
        yield file, function, parameter


def test_each_finding_has_a_test_or_a_reason_why_it_stays() -> None:
    assert len(LINES) >= FINDINGS
    for line in LINES:
        assert "**Stays**" in line or re.search(r"\.py::test_|\b(?:row|lie|case): `", line), line


def is_there(file: str, function: str, parameter: str) -> bool:
    text = (TESTS / file).read_text()
    defined = re.search(rf"^\s*def {function}\(", text, re.MULTILINE)
    return bool(defined) and (parameter in NAMES["row"] or f'"{parameter}"' in text or not parameter)


def test_each_test_that_is_named_is_there() -> None:
    assert ["::".join(one) for one in sorted(set(named(TEXT))) if not is_there(*one)] == []


@pytest.mark.parametrize("kind", NAMES)
def test_an_entry_that_is_named_is_in_its_table(kind: str) -> None:
    told = set(re.findall(rf"\b{kind}: `([^`]+)`", TEXT))
    assert told and told <= NAMES[kind], told - NAMES[kind]


def test_nothing_is_named_that_is_read_as_none() -> None:
    """Each path of a test file stands with one of its functions."""
    assert len(re.findall(r"\.py::", TEXT)) == len([*named(TEXT)])
    assert set(re.findall(r"`((?:unit|real|faults)/[\w/]+\.py)`", TEXT)) <= {
        "real/test_grafts.py",
        "real/test_activity.py",
        "real/lies/test_registry_lies.py",
        "unit/test_reviews.py",
    }
    assert all((TESTS / path).is_file() for path in re.findall(r"`((?:unit|real|faults)/[\w/]+\.py)`", TEXT))


def test_the_page_is_of_this_repository() -> None:
    assert [link for link in re.findall(r"\]\((\w+\.md)\)", TEXT) if not (Path(ROOT) / "docs" / link).is_file()] == []
