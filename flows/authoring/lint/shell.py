"""shellcheck on scripts and on the bodies of RUN, where it is installed."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path

from flows.core.documents import Mistake
from flows.core.programs import command
from flows.images.containerfile import parts

_SHELLS = re.compile(r"#!\s*/\S*?(?:env\s+)?\b(sh|bash|dash)\b")
_AT_ONCE = 200  # files of one call


@dataclass(frozen=True)
class Script:
    """A text for a shell; `origin` tells of a line, counted from 1, from which file and line it comes."""

    text: str
    origin: Callable[[int], tuple[Path, int]]


def script(file: Path, text: str) -> Script | None:
    """A file of a recipe as a script; none: it is none of a shell's."""
    return Script(text, lambda line: (file, line)) if _SHELLS.match(text) else None


def bodies(text: str, templates: Mapping[Path, str]) -> Iterator[Script]:
    """The bodies of the RUNs of a stage; their lines are looked up in the templates that may have made them."""
    for part in parts(text):
        first, *others = part.own_lines
        if part.is_whole and re.match(r"RUN\s+(?!\[)", first):
            lines = [re.sub(r"^RUN\s+(--\S+\s+)*", "", first), *others]
            yield Script("\n".join(["#!/bin/sh", *lines, ""]), partial(_origin, lines, templates))


def _origin(lines: Sequence[str], templates: Mapping[Path, str], number: int) -> tuple[Path, int]:
    """The line of a template that is most like one that was rendered, the first of which has the number 2."""
    line = lines[min(max(number - 2, 0), len(lines) - 1)]
    origin: tuple[float, Path, int] | None = None
    for file, text in templates.items():
        for at, other in enumerate(text.splitlines(), 1):
            if line.strip() == other.strip():
                return file, at
            matcher = SequenceMatcher(None, line.strip(), other.strip())
            if matcher.quick_ratio() > (origin[0] if origin else 0.0) and (
                origin is None or matcher.ratio() > origin[0]
            ):
                origin = (matcher.ratio(), file, at)
    return (origin[1], origin[2]) if origin else (next(iter(templates)), 0)


def mistakes(scripts: Sequence[Script]) -> Iterator[Mistake]:
    """The warnings of shellcheck.

    Raises:
        ProgramMissing: it is not installed.
    """
    for start in range(0, len(scripts), _AT_ONCE):
        with tempfile.TemporaryDirectory(prefix="refit-lint-") as folder:
            yield from _checked(scripts[start : start + _AT_ONCE], Path(folder))


def _checked(scripts: Sequence[Script], folder: Path) -> Iterator[Mistake]:
    files = {str(folder / str(number)): script for number, script in enumerate(scripts)}
    for file, script in files.items():
        Path(file).write_text(script.text, encoding="utf-8")
    # 1: it has found something.
    done = command.run(["shellcheck", "--format=json1", "--severity=warning", *files], accepted=(0, 1))
    for comment in json.loads(done.stdout)["comments"]:
        place, line = files[comment["file"]].origin(comment["line"])
        yield Mistake(place, line, f"{comment['message']} [SC{comment['code']}]")
