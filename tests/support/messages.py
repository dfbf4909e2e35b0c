"""The texts that a person can see, listed from the syntax trees of `flows`: errors, hints, output, help, notices, logs.

`python -m tests.support.messages` writes them anew; `tests/unit/test_messages.py` compares. A text is a literal with
two words in a row; programs, patterns and files for other programs are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SNAPSHOTS = ROOT / "tests" / "snapshots" / "messages"
_WORDS = re.compile(r"[A-Za-z'`}]{2,}[,;:.]? [a-z'`{]{2,}")
# Calls whose texts are read by programs.
_PROGRAMS = re.compile(
    r"(^|\.)(compile|search|match|fullmatch|finditer|sub|execute|encode|dedent|text|run|check|startswith|removeprefix|split)$"
)
# Marks of shell, Python, Containerfiles, HTML, SQL and configuration.
_CODE = re.compile(
    r"&&|\|\||\$\{?\w|\bimport |\{%|^\s*(?:FROM|RUN|ENV|COPY|SELECT|PRAGMA) |</?\w+>|;\s*$|=\{|^#!|\\[dws]|^-|/usr/"
)


def _text(node: ast.expr) -> str | None:
    """The text of a literal; values in it by their expressions."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{" + ast.unparse(_value(part)) + "}"
                for part in parts
            )
    return None


def _value(part: ast.expr) -> ast.expr:
    return part.value if isinstance(part, ast.FormattedValue) else part


def _help(node: ast.AST) -> str | None:
    """The docstring of a command, which `--help` shows, or of a flow, which Prefect shows."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    shown = any(re.search(r"\.command\b|\.callback\b|^flow\b", ast.unparse(one)) for one in node.decorator_list)
    return ast.get_docstring(node) if shown else None


def _walk(node: ast.AST, kind: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each literal below a node, in the order of the file; `kind`: the call around it."""
    if told := _help(node):
        yield "help", told
    if isinstance(node, ast.expr) and (text := _text(node)) is not None:
        if _WORDS.search(text) and not _CODE.search(text):
            yield kind, text
        return
    for field, child in ast.iter_fields(node):
        for one in child if isinstance(child, list) else [child]:
            if not isinstance(one, ast.AST) or (field == "body" and _is_docstring(one)):
                continue
            if isinstance(one, ast.Call):
                name = ast.unparse(one.func).split(".")[-1]
                if not _PROGRAMS.search(ast.unparse(one.func)):
                    yield from _walk(one, kind if name in ("join", "filter", "strip", "format") else name)
            elif isinstance(one, ast.keyword):
                yield from _walk(one, f"{kind} {one.arg}")
            else:
                yield from _walk(one, kind)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@cache
def messages() -> Mapping[str, str]:
    """Room → the texts of its modules, one a line, as the files of the snapshot hold them."""
    rooms: dict[str, list[str]] = {}
    for path in sorted((ROOT / "flows").rglob("*.py")):
        name = path.relative_to(ROOT / "flows")
        lines = []
        for statement in ast.parse(path.read_text()).body:
            for kind, text in _walk(statement, "") if not _is_docstring(statement) else ():
                lines.append(f"{kind or 'text'} | {' '.join(text.split())}")
        if lines:
            room = name.parts[0] if len(name.parts) > 1 else "flows"
            rooms.setdefault(room, []).extend([f"== flows/{name}", *lines, ""])
    return {room: "\n".join(lines) for room, lines in rooms.items()}


def write() -> None:
    """Write the snapshot anew."""
    SNAPSHOTS.mkdir(parents=True, exist_ok=True)
    new = messages()
    for old in SNAPSHOTS.glob("*.txt"):
        if old.stem not in new:
            old.unlink()
    for room, text in new.items():
        (SNAPSHOTS / f"{room}.txt").write_text(text)


if __name__ == "__main__":
    write()
