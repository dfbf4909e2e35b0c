"""The instructions of Containerfiles and snippets, and what a template makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from flows.authoring.importing.checkout import HOME, THEIR_HOME

_CONTINUED = re.compile(r"\\\s*$")


_LONGEST = 200


# What says nothing of an image that Refit makes.
_EMPTY = ("ARG", "FROM", "USER")


_RUN = re.compile(r"^RUN\s+(?!\[)", re.MULTILINE)


def as_template(text: str) -> str:
    """A snippet as a template; what a shell would replace there, Refit replaces here."""
    text = text.replace(THEIR_HOME, HOME)
    text = re.sub(r"\{[{%#]", lambda found: f"{{{{ {found[0]!r} }}}}", text)
    text = re.sub(r"\$\{?PYTHON_FOLDER\b\}?", "python{{ python_version }}", text)
    text = _RUN.sub("RUN {{ shell.begin() }} ", re.sub(r"\$\{?(CUDA|RELEASE)\b\}?", "", text))
    start = '{% import "snippets/shell.j2" as shell with context %}\n' if "shell.begin()" in text else ""
    return f"{start}{text.rstrip()}\n"


def instructions(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each instruction of a Containerfile that makes something of an image; one line each."""
    begin, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begin = begin if parts else number
        parts.append(_CONTINUED.sub("", line).strip())
        if _CONTINUED.search(line):
            continue
        whole, parts = " ".join(parts), []
        if whole.partition(" ")[0].upper() not in _EMPTY:
            yield begin, whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]} …"


def places(lines: Iterable[str], names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Where names stand in a list that has one in each line: line and name."""
    wanted = set(names)
    for number, line in enumerate(lines, 1):
        if (name := line.partition("#")[0].strip()) in wanted:
            wanted.discard(name)
            yield number, name
