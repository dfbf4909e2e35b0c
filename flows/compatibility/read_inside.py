"""Reads what of a session's home and volumes can depend on the image: runs beside the session, in its container.

It comes there with the reader and pyelftools in an archive, for images lack these. Programs of the session share its
memory, cores and user: it takes little, and is the first to go where memory ends.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from flows.compatibility.facts import Home
from flows.compatibility.read_home import Bounds, Reader, tell

MOST_MEMORY = 512 << 20


def main(asked: bytes) -> None:
    """Read the folders that `asked` (JSON) names, each with its place as the session sees it, and print the reports.

    It ends when `seconds` are over, whatever a file system does.
    """
    request = json.loads(asked)
    _take_little(request["seconds"])
    tell([asdict(_read(folder, Bounds(**request["bounds"]))) for folder in request["folders"]])


def _read(folder: str, bounds: Bounds) -> Home:
    # The home is a link of the slot to its claim. The session's own user may read whatever it leads to.
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return Reader(top, folder, bounds).read()
    finally:
        os.close(top)


def _take_little(seconds: int) -> None:
    signal.alarm(seconds)
    os.nice(10)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory = MOST_MEMORY if most == resource.RLIM_INFINITY else min(MOST_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with suppress(OSError):  # some runtimes don't have it
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
