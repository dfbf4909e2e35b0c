"""How things are written in messages for people, text of others among them. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping

# Characters from which Markdown makes links, pictures, HTML, code or cells of a table.
_MARKDOWN = re.compile(r"[\\`*\[\]<>&|~]|(?<![^\W_])_|_(?![^\W_])")
# A heading, a list or a line at the beginning: `# 1`, `- x`, `1. x`.
_BEGINNING = re.compile(r"^(\d*)([#+=.)-])(?=[\s#=-]|$)")

_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")


def some(things: Iterable[object], most: int = 10, between: str = ", ") -> str:
    """The first `most` of some things, and how many more there are."""
    words = [str(part) for part in things]
    more = len(words) - most
    return between.join(words[:most]) + (f" and {more} more" if more > 0 else "")


def short(digest: str) -> str:
    """The first twelve digits of a digest: enough for people to tell images apart, and to name one."""
    return digest.removeprefix("sha256:")[:12]


def megabytes(size: float, digits: int = 0) -> str:
    """A number of bytes in MB of a million bytes each, with so many digits behind the point."""
    return f"{size / 1e6:.{digits}f} MB"


def gigabytes(size: float) -> str:
    """A number of bytes in GB of a billion bytes each, with one digit behind the point."""
    return f"{size / 1e9:.1f} GB"


def duration(seconds: float) -> str:
    """A length of time in its largest fitting unit: `40 s`, `5 min`, `3 h`, `2 d`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def exact_duration(seconds: float) -> str:
    """A length of time to the second, below a minute to a tenth of it: `12.3 s`, `4 min 5 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def first_sentence(text: str, most: int = 200) -> str:
    """The first sentence of a text, or the first line if that is shorter; at most so many characters."""
    sentence = _SENTENCE_END.split(text.strip(), maxsplit=1)[0]
    return sentence if len(sentence) <= most else f"{sentence[: most - 1]}…"


def clipped(text: str, most: int) -> str:
    """The first `most` characters of a text, and how many it has, if those are more."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"


def printable(text: str) -> str:
    """A text of others as a terminal can show it: control characters, invisible ones and turns of direction escaped.

    Lines and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _escaped(each) for each in _in_lines(text))


def on_a_line(text: str) -> str:
    """As `printable`, on one line: nobody can pass a line of theirs off as one of ours."""
    return text if text.isprintable() else "".join(e if e.isprintable() else _escaped(e) for e in _in_lines(text))


def in_markdown(text: str) -> str:
    """A text of others in Markdown, and in a cell of a table there: it is shown as it is, on one line."""
    shown = _MARKDOWN.sub(r"\\\g<0>", " ".join(printable(text).split()))
    return _BEGINNING.sub(r"\1\\\2", shown)


def as_cells(rows: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Rows for a page that takes every text in a table for Markdown, as Prefect's does."""
    return [{name: in_markdown(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in rows]


class Printable(logging.LogRecord):
    """A line of a log that may end on a terminal: `logging.setLogRecordFactory` takes it."""

    def getMessage(self) -> str:  # noqa: N802 - so logging wants it
        """The message, as a terminal can show it."""
        return printable(super().getMessage())


def _in_lines(text: str) -> str:
    return text.replace("\r\n", "\n")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
