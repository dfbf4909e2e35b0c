"""Containerfiles as instructions: comments, empty lines, and lines that go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flows.images.containerfile import parts

TEXT = """\
# why
RUN a && \\
# between

    b \\ \t
  c
  ENV A=b

COPY x \\"""
LINES = st.sampled_from(["RUN a \\", "b", "  c \\ ", "# d \\", "", " ", "{% if x %}"])


def test_instructions_have_their_lines_and_builders_read_them_as_one() -> None:
    results = list(parts(TEXT))
    assert [(part.number, part.is_aside, part.is_whole) for part in results] == [
        (1, True, True),
        (2, False, True),
        (7, False, True),
        (8, True, True),
        (9, False, False),
    ]
    assert [part.joined for part in results if not part.is_aside] == ["RUN a &&     b   c", "ENV A=b", "COPY x "]
    assert results[1].own_lines == ("RUN a && \\", "    b \\ \t", "  c")


def test_a_comment_does_not_go_on_and_nothing_has_no_parts() -> None:
    assert [part.text for part in parts("# a \\\nRUN b\n")] == ["# a \\", "RUN b"]
    assert list(parts("")) == []


def test_templates_may_go_on_after_other_lines() -> None:
    [part] = parts("{% if x %}\n\nRUN a", lambda line: line.startswith("{%"))
    assert part.number == 1 and part.own_lines == ("{% if x %}", "RUN a")


@given(st.lists(LINES, min_size=1))
def test_no_line_is_lost_and_numbers_are_those_of_the_text(lines: list[str]) -> None:
    results = list(parts("\n".join(lines) + "\n"))
    assert [line for part in results for line in part.lines] == lines
    assert all(lines[part.number - 1] == part.lines[0] for part in results)
    assert all(part.is_whole for part in results[:-1])
