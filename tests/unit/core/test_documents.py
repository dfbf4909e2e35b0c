from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from flows.core import documents
from flows.core.documents import Document, Mistakes

FILE = Path("releases/2026a.yaml")


class Part(Document):
    name: str
    size: int = Field(1, ge=1)


class Whole(Document):
    title: str
    parts: tuple[Part, ...] = ()


def mistakes(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(Mistakes) as error:
        documents.parse(text, FILE, Whole)
    return [(m.line, m.what, m.hint) for m in error.value.mistakes]


def test_a_good_file_is_read() -> None:
    assert documents.parse("title: x\nparts:\n- {name: a}\n", FILE, Whole) == Whole(title="x", parts=(Part(name="a"),))


def test_all_mistakes_come_at_once_with_their_lines() -> None:
    text = "titel: x\nparts:\n- name: a\n  size: 0\n- size: many\n"
    result = mistakes(text)
    assert [(line, what.partition(":")[0]) for line, what, _ in result] == [
        (1, "titel"),
        (1, "title"),
        (4, "parts.0.size"),
        (5, "parts.1.name"),
        (5, "parts.1.size"),
    ]
    assert "did you mean 'title'?" in result[0][2]


def test_a_repeated_key_is_refused() -> None:
    assert mistakes("title: x\ntitle: y\n") == [(2, "'title' stands already in line 1", "keep one of them")]


def test_broken_yaml_names_its_line() -> None:
    [(line, what, _)] = mistakes("title: x\nparts: [\n- a: b\n")
    assert line >= 2 and "not valid YAML" in what


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Mistakes, match="1 mistake"):
        documents.read(tmp_path / "none.yaml", Whole)


@given(st.text())
def test_no_text_makes_a_traceback(text: str) -> None:
    try:
        documents.parse(text, FILE, Whole)
    except Mistakes as found:
        assert all(mistake.file == FILE and mistake.line >= 0 for mistake in found.mistakes)
