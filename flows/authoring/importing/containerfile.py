"""The instructions of Containerfiles and snippets: where each stands, what it consists of, what it reads. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

_ESCAPE = re.compile(r"\A(?:\s*#\s*\w+\s*=.*\n)*\s*#\s*escape\s*=\s*`", re.IGNORECASE)
_HEREDOC = re.compile(r"""(?:^|(?<=\s))\d*<<(-?)(["']?)([A-Za-z_]\w*)\2(?=[\s;|&>)]|$)""")
NAMES = frozenset(
    [
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ]
)
_COMPOUND = re.compile(r"\b(?:if|for|while|until|case|function)\b")
_FLAGS = re.compile(r"(?:--[\w-]+(?:=\S*)?\s+)*")
_VARIABLE = re.compile(r"(?<!\\)\$(?:\{([A-Za-z_]\w*)|([A-Za-z_]\w*))")
# Nothing in it ends a part, a quote or parentheses.
_PLAIN = re.compile(r"""[^\s"'\\()&]+""")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        line: where it begins, from 1.
        last: the line where it ends.
        name: in capitals.
        flags: the text between its name and the rest, with a blank after it; empty: there is none.
        rest: the rest of it, with continuations joined and without comments in between.
        rows: the same as lines of the file: line and text.
        heredoc: whether it has one, whose lines are among `rows` alone.
    """

    line: int
    last: int
    name: str
    flags: str
    rest: str
    rows: tuple[tuple[int, str], ...]
    heredoc: bool = False

    @property
    def text(self) -> str:
        """All of it in one line."""
        body = [row for _, row in self.rows[self._joined :]]
        return " ".join([f"{self.name} {self.flags}{self.rest}", *body])

    @property
    def _joined(self) -> int:
        return next((at for at, (_, row) in enumerate(self.rows, 1) if _HEREDOC.search(row)), len(self.rows))

    @property
    def is_list(self) -> bool:
        """Whether it is in JSON's form."""
        return self.words is not None

    @property
    def words(self) -> list[str] | None:
        """The words of its JSON form; none: it has another."""
        try:
            words = json.loads(self.rest) if self.rest.startswith("[") else None
        except (ValueError, RecursionError):
            return None
        return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None

    def parts(self) -> Iterator[tuple[int, str]]:
        """Its parts, each with its line: variables, labels, the commands of a RUN that `&&` joins."""
        if self.name in ("ENV", "LABEL") and _assigns(self.rest):
            split = _split(self.rows, re.compile(r"\s+"), skip=len(self.rows[0][1].split(None, 1)[0]))
        elif self.name == "RUN" and not (self.is_list or self.heredoc or _COMPOUND.search(self.rest)):
            split = _split(self.rows, re.compile(r"&&\s*"), skip=3)
        else:
            split = iter([(self.line, self.text.partition(" ")[2])])
        for line, part in split:
            yield line, f"{self.name} {part}"


def instructions(text: str) -> tuple[Instruction, ...]:
    """The instructions of a text, in their order."""
    return tuple(_instructions(text))


def escapes_otherwise(text: str) -> bool:
    """Whether a line is continued by another character than a backslash."""
    return bool(_ESCAPE.match(text))


def _instructions(text: str) -> Iterator[Instruction]:
    mark = "`" if escapes_otherwise(text) else "\\"
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if _says_nothing(lines[at]):
            at += 1
            continue
        begin, rows, more = at, list[tuple[int, str]](), True
        while more and at < len(lines):
            if not _says_nothing(lines[at]):
                row = lines[at].rstrip()
                more = row.endswith(mark)
                rows.append((at + 1, row[: -len(mark)].strip() if more else row.strip()))
            at += 1
        joined = " ".join(row for _, row in rows if row)
        name, _, rest = re.sub(r"\s+", " ", joined, count=1).partition(" ")
        body = list[tuple[int, str]]()
        if name.upper() in ("RUN", "COPY", "ADD"):
            for dash, _, word in _HEREDOC.findall(rest):
                at = _read_heredoc(lines, at, word, bool(dash), body)
        flags = (_FLAGS.match(rest) or [""])[0]
        yield Instruction(begin + 1, at, name.upper(), flags, rest[len(flags) :], (*rows, *body), bool(body))


def _read_heredoc(lines: list[str], at: int, word: str, tabs: bool, body: list[tuple[int, str]]) -> int:
    """Add the lines of a heredoc that begins at a line, from 0, to a body; returns the line after it."""
    while at < len(lines):
        line = lines[at]
        at += 1
        body.append((at, line))
        if (line.lstrip("\t") if tabs else line).rstrip() == word:
            break
    return at


def _says_nothing(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _assigns(rest: str) -> bool:
    """Whether this is `NAME=value …`, not the older `NAME value`."""
    return "=" in rest.split(None, 1)[0] if rest.split() else False


def _split(rows: tuple[tuple[int, str], ...], between: re.Pattern[str], skip: int) -> Iterator[tuple[int, str]]:
    """The pieces of joined lines between what isn't quoted or in parentheses, each with the line where it begins."""
    part, begin, quote, depth = list[str](), 0, "", 0
    for number, row in rows:
        at, skip = skip, 0
        if part and part[-1] != " ":
            part.append(" ")
        while at < len(row):
            if plain := _PLAIN.match(row, at):
                begin, at = begin if part else number, plain.end()
                part.append(plain[0])
                continue
            match = between.match(row, at) if not quote and depth == 0 else None
            if match and match.end() > at:
                yield from _piece(begin, part)
                part, at = [], match.end()
                continue
            character = row[at]
            width = 2 if character == "\\" and quote != "'" else 1
            quote = _quoted(quote, character)
            depth = max(0, depth + {"(": 1, ")": -1}.get(character, 0)) if not quote else depth
            if part or not character.isspace():
                begin = begin if part else number
                part.append(row[at : at + width])
            at += width
        if not quote and depth == 0 and between.pattern == r"\s+":
            yield from _piece(begin, part)
            part = []
    yield from _piece(begin, part)


def _piece(begin: int, part: list[str]) -> Iterator[tuple[int, str]]:
    """A piece as text, unless it says nothing."""
    if text := "".join(part).strip():
        yield begin, text


def _quoted(quote: str, character: str) -> str:
    """The quote that a text is in after a character; empty: none."""
    if quote:
        return "" if character == quote else quote
    return character if character in "\"'" else ""


def variables(text: str) -> dict[str, str]:
    """The variables that ENV and ARG instructions of a text set, with the values that they are given."""
    given: dict[str, str] = {}
    for each in instructions(text):
        if each.name not in ("ENV", "ARG"):
            continue
        for _, part in each.parts():
            name, mark, value = part.partition(" ")[2].partition("=")
            if not mark:
                name, _, value = name.partition(" ")
            given[name.strip()] = value.strip().strip("\"'")
    return given


def reads(text: str) -> dict[str, int]:
    """The variables that the instructions of a text read, each with the first line that does."""
    lines: dict[str, int] = {}
    for each in instructions(text):
        for line, row in each.rows:
            for match in _VARIABLE.finditer(row):
                lines.setdefault(match[1] or match[2], line)
    return lines
