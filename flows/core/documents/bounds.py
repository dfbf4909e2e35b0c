"""Files that are read at all: regular ones, with no more bytes than their kind may have, no deeper than parsers can go.

All of it is looked at before a parser sees it. A parser that recurses ends the process where a text is deep enough, and
one that expands aliases takes all memory.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import accumulate
from pathlib import Path
from typing import Any

from flows.core.lazily import lazily

with lazily(globals()):
    import yaml

_MB = 1_000_000

# Bytes that a file of each kind may have.
TEXT = 8 * _MB
YAML = 4 * _MB
TOML = 1 * _MB
JSON = 32 * _MB
TEMPLATE = 1 * _MB
COPIED = 64 * _MB  # into an image, as it is

DEPTH = 64  # collections in each other
NODES = 200_000  # values in a YAML file, with those that its aliases stand for
LINE = 10_000  # characters on a line of TOML: the cost of its keys grows with the square of their length
NUMBER = 1_000  # characters of a number in YAML, which may be written to base 60

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class NotAFile(OSError):
    """The path is no regular file that may be read."""


class OutOfBounds(ValueError):
    """A text is more than may be parsed; with its line, from 1."""

    def __init__(self, line: int, what: str) -> None:
        self.line = line
        super().__init__(what)


def read_bytes(path: Path, limit: int, within: str = "") -> bytes:
    """The content of a regular file.

    Args:
        path: the file, or a link to it.
        limit: how many bytes it may have.
        within: the folder that it has to lie in, wherever links lead; its path has none itself. Empty: anywhere.

    Raises:
        NotAFile: it is something else, has more bytes, or lies elsewhere.
        OSError: it can't be read.
    """
    opened = _open(path, within)
    try:
        parts, remaining = [], limit + 1
        while remaining > 0 and (part := os.read(opened, min(remaining, max(os.fstat(opened).st_size, 1 << 16) + 1))):
            parts.append(part)
            remaining -= len(part)
    finally:
        os.close(opened)
    if remaining <= 0:
        raise NotAFile(f"it has more than {limit / _MB:g} MB")
    return b"".join(parts)


def read_text(path: Path, limit: int = TEXT, within: str = "") -> str:
    """The text of a regular file; arguments as in `read_bytes`.

    Raises:
        NotAFile: it is something else, has more bytes, or lies elsewhere.
        OSError: it can't be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    # As Python reads texts: each end of a line is one character.
    return read_bytes(path, limit, within).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _open(path: Path, within: str) -> int:
    """Open a file for reading once it is known to be one: to open a FIFO waits, a device does what it likes."""
    named = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(named).st_mode)
        if kind != stat.S_IFREG:
            raise NotAFile(f"it is {_KINDS.get(kind, 'something else')}, and no file")
        real = f"/proc/self/fd/{named}"
        if within and not str(Path(real).readlink()).startswith(f"{within}/"):
            raise NotAFile(f"it is a link that leads out of {within}")
        try:
            return os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(named)


def check_yaml(text: str) -> None:
    """Refuse YAML that is deeper, or has more values, than may be parsed. libyaml tells its events without recursion.

    Raises:
        OutOfBounds: with its line.
        yaml.YAMLError: it is none.
    """
    _check_length(text, YAML)
    parser = yaml.CSafeLoader(text)
    sizes, names, depths, total = [0], [""], dict[str, int](), 0
    while parser.check_event():
        event: Any = parser.get_event()
        line, more = event.start_mark.line + 1, 1
        if isinstance(event, yaml.CollectionEndEvent):
            size, name, more = sizes.pop(), names.pop(), 0
            sizes[-1] += size
            depths |= {name: size} if name else {}
        elif isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            names.append(event.anchor or "")
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
            depths |= {event.anchor: 1} if event.anchor else {}
            if len(event.value) > NUMBER and event.implicit[0] and event.value[0] in "+-.0123456789":
                raise OutOfBounds(line, f"this number has more than {NUMBER:,} characters")
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in names:
                raise OutOfBounds(line, f"the alias {event.anchor!r} stands within what it stands for")
            more = depths.get(event.anchor or "", 1)
            sizes[-1] += more
        total += more
        if len(sizes) - 1 > DEPTH:
            raise OutOfBounds(line, f"more than {DEPTH} lists and mappings are in each other here")
        if total > NODES:
            raise OutOfBounds(line, f"this has more than {NODES:,} values, with those that aliases stand for")


def check_toml(text: str) -> None:
    """Refuse TOML with lines that would take long.

    Raises:
        OutOfBounds: with its line.
    """
    _check_length(text, TOML)
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LINE:
            raise OutOfBounds(number, f"this line has more than {LINE:,} characters")


def _check_length(text: str, limit: int) -> None:
    if len(text) > limit:
        raise OutOfBounds(1, f"this has more than {limit / _MB:g} MB")


def check_depth(data: object) -> None:
    """Refuse data that is deeper than what works with it can go.

    Raises:
        OutOfBounds: it is; data has no lines.
    """
    level: list[object] = [data]
    for _ in range(DEPTH + 1):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise OutOfBounds(1, f"more than {DEPTH} lists and tables are in each other here")


def check_json(text: str) -> None:
    """Refuse JSON that is deeper than what works with it can go.

    Raises:
        OutOfBounds: with its line.
    """
    _check_length(text, JSON)
    if _json_depth(text) > DEPTH:
        raise OutOfBounds(_too_deep_in_json(text), f"more than {DEPTH} lists and objects are in each other here")


_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if chr(byte) not in '"[]{}')
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def _json_depth(text: str) -> int:
    content = text.encode("utf-8", errors="replace")
    if b"\\" in content:
        content = re.sub(rb"\\.", b"", content, flags=re.DOTALL)
    brackets = re.sub(rb'"[^"]*"', b"", content.translate(None, _ALL_BUT_BRACKETS))
    return max(accumulate(_STEPS.get(byte, 0) for byte in brackets), default=0)


def _too_deep_in_json(text: str) -> int:
    """The line, from 1, on which JSON gets too deep."""
    depth = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[\]{}]', text, re.DOTALL):
        depth += _STEPS.get(ord(token[0][0]), 0)
        if depth > DEPTH:
            return text.count("\n", 0, token.start()) + 1
    return 1
