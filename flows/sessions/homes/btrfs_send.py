"""Changes between two snapshots, from the stream that btrfs would send to make the one of the other. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

# `btrfs receive --dump`: a verb, a path with its spaces escaped, maybe where it goes; paths begin with the snapshot.
_LINE = re.compile(r"(?P<verb>\w+)\s+\./[^/\s]+(?P<path>(?:\\.|[^\s\\])*)(?P<rest>.*)")
_TARGET = re.compile(r" dest=\./[^/\s]+(?P<path>(?:\\.|[^\s\\])*)$")
_PLAIN = re.compile(r"/?[\w.-]+(/[\w.-]+)*/?", re.ASCII)
_TEMPORARY = re.compile(r"o\d+-\d+-\d+")
_MAKES, _ENDS = frozenset({"mkfile", "mkdir", "mknod", "mkfifo", "mksock", "symlink"}), frozenset({"unlink", "rmdir"})


def touched(dump: str) -> frozenset[str] | None:
    """The paths below the home that differ in more than the time of a folder; none: it can't be understood."""
    paths: set[str] = set()
    timed: set[str] = set()
    new_paths: set[str] = set()
    ended: set[str] = set()
    for line in dump.splitlines():
        if (match := _LINE.fullmatch(line)) is None:
            return None
        verb, path = match["verb"], match["path"].strip("/")
        if verb == "snapshot":
            continue
        (timed if verb == "utimes" else paths).add(path)
        if verb in _MAKES:
            new_paths.add(path)
        elif verb in _ENDS:
            ended.add(path)
        elif verb == "rename":
            if (target := _TARGET.search(match["rest"])) is None:
                return None
            ended.add(path)
            paths.add(target["path"].strip("/"))
            new_paths.add(target["path"].strip("/"))
    # The names under which btrfs makes and removes things begin and end within what is sent.
    between = {name for name in new_paths & ended if _TEMPORARY.fullmatch(name)}
    paths = {path for path in paths if path.partition("/")[0] not in between}
    holders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    return frozenset(paths | {path for path in timed - holders if path})


def only_within(paths: Iterable[str], allowed: Collection[str]) -> bool:
    """Whether all paths are in what is `allowed`: patterns of rsync, of which those with wildcards don't count."""
    plain = [pattern.strip("/") for pattern in allowed if _PLAIN.fullmatch(pattern)]
    return all(any(path == folder or path.startswith(f"{folder}/") for folder in plain) for path in paths)
