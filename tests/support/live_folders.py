"""Folders in which others work meanwhile: their entries may be gone before a look at them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def paths_below(folder: Path) -> Iterator[Path]:
    """All files and folders below a folder; `Path.rglob` fails where a folder goes while it looks."""
    for above, folders, files in os.walk(folder):
        yield from (Path(above, name) for name in (*folders, *files))


def contents(paths: Iterator[Path]) -> dict[Path, bytes]:
    """The content of each regular file of these that is still there."""
    results = {}
    for path in paths:
        with suppress(FileNotFoundError):
            if path.is_file():
                results[path] = path.read_bytes()
    return results


def modified(paths: Iterator[Path]) -> dict[Path, int]:
    """When each regular file of these that is still there was last written, in nanoseconds."""
    results = {}
    for path in paths:
        with suppress(FileNotFoundError):
            if path.is_file():
                results[path] = path.stat().st_mtime_ns
    return results
