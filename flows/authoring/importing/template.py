"""A snippet of theirs as a template of Refit's: the parts that can be carried over, and those that can't. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from flows.authoring.importing.containerfile import NAMES, Instruction, escapes_otherwise, instructions
from flows.core.documents import bounds
from flows.core.formatting import clipped

_QUOTED = 400  # characters of an instruction, where one is quoted
THEIR_HOME, HOME = "/opt/app-root/src", "/home/dev"
_BRACES = re.compile(r"\{[{%#]")
_RUN = re.compile(r"^(\s*RUN\s+)", re.IGNORECASE)
_PYTHON = re.compile(r"\$(?:\{PYTHON_FOLDER\}|PYTHON_FOLDER\b)")
_DROPPED = re.compile(r"\$(?:\{(CUDA|RELEASE)\}|(CUDA|RELEASE)\b)")
# Marks that shlex takes away, so that words on both sides of them become one.
_JOINING = str.maketrans("", "", "\"'\\")
_ELSEWHERE = re.compile(r"[a-z]+://|git@|<<")
# Programs of the images on which their bases stand. They let a user of any number write, which nobody is here.
HELPERS = ("fix-permissions", "rpm-file-permissions")
_HELPER = re.compile(rf"""(?<![\w./-])(?:{"|".join(HELPERS)})\b(?!-)[^&|;\\"'`)]*""")
_IMPORT = '{% import "snippets/shell.j2" as shell with context %}\n'
_BEGIN = "{{ shell.begin() }} "


@dataclass
class Carried:
    """The result for a snippet.

    Attributes:
        text: the template.
        said: notes for its author, each with its line.
        lacking: why an image with it would not be what it was, each with its line; none: it would.
    """

    text: str = ""
    said: list[tuple[int, str]] = field(default_factory=list)
    lacking: list[tuple[int, str]] = field(default_factory=list)


def carried(text: str, files: Collection[str] = ()) -> Carried:
    """Make a template of a snippet.

    Args:
        text: the snippet.
        files: the paths of the files that it can copy.
    """
    result, steps = Carried(), instructions(text)
    folders = {f"{file}/"[:at] for file in files for at, mark in enumerate(f"{file}/") if mark == "/"} | {""}
    lines = [_escaped(line) for line in text.split("\n")]
    if escapes_otherwise(text):
        result.lacking.append((1, "its lines are continued by `, which Refit doesn't take"))
    for step in steps:
        result.lacking += [(step.line, why) for why in _lacks(step, folders)]
        if step.name == "ONBUILD":
            result.said.append((step.line, f"images of Refit's have no ONBUILD, and this does nothing: {step.text}"))
        if replaced := _replaced(step):
            lines[step.line - 1 : step.last] = [replaced] + [""] * (step.last - step.line)
        elif step.name == "RUN" and not step.is_list:
            lines[step.line - 1] = _begun(lines[step.line - 1], step)
    result.said += sorted(_notes(text))
    result.text = _whole(lines, steps)
    if len(result.text.encode(errors="replace")) > bounds.TEMPLATE:
        result.lacking.append((1, f"is more than {bounds.TEMPLATE // 1_000_000} MB as a template"))
        result.text = "# It was too long.\n"
    return result


def _whole(lines: list[str], steps: Collection[Instruction]) -> str:
    """All lines as one text, without the empty ones that joined lines leave behind."""
    joined = {number for step in steps if _replaced(step) for number in range(step.line, step.last)}
    text = "\n".join(line for at, line in enumerate(lines) if at not in joined).rstrip()
    return f"{_IMPORT if _BEGIN in text else ''}{text}\n"


def _escaped(line: str) -> str:
    """A line that a template gives as it is, with what their program puts in for its variables."""
    line = _HELPER.sub(lambda call: "true" + " " * call[0].endswith(" "), line)
    line = _BRACES.sub(lambda match: f"{{{{ {match[0]!r} }}}}", line.replace(THEIR_HOME, HOME))
    return _DROPPED.sub("", _PYTHON.sub("python{{ python_version }}", line)).rstrip()


def _begun(line: str, step: Instruction) -> str:
    """The first line of a RUN, which begins as all of Refit's do."""
    begin = _RUN.match(line)
    if step.heredoc or not begin:
        return line
    return f"{begin[1]}{step.flags}{_BEGIN}{line[begin.end() + len(step.flags) :]}"


def _replaced(step: Instruction) -> str:
    """The one line that takes the place of an instruction: of one that copies files, or has flags on several lines."""
    if step.name == "RUN" and step.flags and not step.rows[0][1].replace("\t", " ").startswith(_flagged(step)):
        return "" if step.heredoc or step.is_list else f"RUN {step.flags}{_BEGIN}{_escaped(step.rest)}"
    if step.name not in ("COPY", "ADD") or "--from=" in step.flags or step.heredoc:
        return ""
    sources = _sources(step)
    if not sources or all(_ELSEWHERE.match(source) for source in sources):
        return ""
    moved = [source if _ELSEWHERE.match(source) else _moved(source) for source in sources]
    words = [*moved, (step.words or step.rest.split())[-1]]
    written = f"[{', '.join(_quoted(word) for word in words)}]" if step.is_list else " ".join(words)
    return _escaped(f"{step.name} {step.flags}{written}")


def _flagged(step: Instruction) -> str:
    return f"{step.rows[0][1].split(None, 1)[0]} {step.flags}".rstrip()


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _sources(step: Instruction) -> list[str]:
    return (step.words or step.rest.split())[:-1]


def _moved(source: str) -> str:
    """Where a file of their build lies in one of Refit's; no path leads out of it there either."""
    inside = posixpath.normpath(f"/{source}").lstrip("/")
    return f"files/{inside}{'/' if source.endswith('/') and inside else ''}"


def _lacks(step: Instruction, folders: Collection[str]) -> Iterator[str]:
    """Why an image with an instruction would not be what it was.

    Args:
        step: the instruction.
        folders: the paths of files and folders that it can copy.
    """
    quoted = clipped(step.text, _QUOTED)
    if step.name not in NAMES:
        yield f"is no instruction of a Containerfile: {step.text[:80]}"
    elif step.name == "FROM":
        yield f"begins another stage, and stages that copy from each other can't be carried over: {quoted}"
    elif "--from=" in step.flags:
        yield f"copies from another stage or image: {quoted}"
    elif step.heredoc:
        yield f"has a heredoc, which Refit's builder takes for instructions: {step.text[:80]}"
    elif step.name in ("COPY", "ADD"):
        for source in _sources(step):
            inside = _moved(source).removeprefix("files/").rstrip("/")
            if not (_ELSEWHERE.match(source) or re.search(r"[*?\[$]", source) or inside in folders):
                yield f"copies {source}, which is not among its files: {quoted}"


def _notes(text: str) -> Iterator[tuple[int, str]]:
    """Notes for a person about the words of a snippet."""
    for step in instructions(text):
        for line, row in step.rows:
            quoted = clipped(row, _QUOTED)
            if THEIR_HOME in row:
                yield line, f"{THEIR_HOME} is {HOME} here: {quoted}"
            for name in sorted({match[1] or match[2] for match in _DROPPED.finditer(row)}):
                yield line, f"${{{name}}} is empty here, for no stage knows it: {quoted}"


def programs(text: str, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Which programs of some names the commands of a snippet call, and where."""
    for step in instructions(text):
        for line, row in step.rows if step.name == "RUN" else ():
            joined = row.translate(_JOINING)
            if not any(name in joined for name in names):
                continue  # shlex takes seconds for a word of a megabyte
            try:
                words = set(shlex.split(row, comments=False))
            except ValueError:
                words = set(row.split())
            yield from ((line, name) for name in sorted(words & set(names)))
