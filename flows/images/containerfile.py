"""The text of a Containerfile as instructions, by the rules of builders for comments and lines that go on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_CONTINUED = re.compile(r"\\[ \t]*$")


@dataclass(frozen=True)
class Part:
    """An instruction with the lines that continue it; or an aside: one comment, or one empty line.

    Attributes:
        number: of its first line, from 1.
        lines: as they stand; comments and empty lines between those of an instruction are among them.
        is_whole: whether its last line ends it; otherwise the text ends before.
    """

    number: int
    lines: tuple[str, ...]
    is_whole: bool = True

    @property
    def is_aside(self) -> bool:
        """Whether it is no instruction."""
        return is_aside(self.lines[0])

    @property
    def text(self) -> str:
        """Its lines as they stand."""
        return "\n".join(self.lines)

    @property
    def own_lines(self) -> tuple[str, ...]:
        """Its lines without the comments and empty lines between them."""
        return self.lines if self.is_aside else tuple(line for line in self.lines if not is_aside(line))

    @property
    def joined(self) -> str:
        """It in one line, as builders read it: without the backslashes, and nothing in their place."""
        lines = [_CONTINUED.sub("", line) for line in self.own_lines]
        return "".join([lines[0].lstrip(), *lines[1:]])


def is_aside(line: str) -> bool:
    """Whether a line is empty or a comment."""
    return not line.strip() or line.lstrip().startswith("#")


def is_continued(line: str) -> bool:
    """Whether the instruction goes on in the next line, by a backslash at the end."""
    return bool(_CONTINUED.search(line))


def parts(text: str, goes_on: Callable[[str], bool] = is_continued) -> Iterator[Part]:
    """All of a text, in its order. Templates have further lines after which an instruction goes on."""
    lines: list[str] = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        lines.append(line)
        between = is_aside(line) and len(lines) > 1
        if not between and (is_aside(line) or not goes_on(line)):
            yield Part(number - len(lines) + 1, tuple(lines))
            lines = []
    if lines:
        yield Part(number - len(lines) + 1, tuple(lines), is_whole=False)
