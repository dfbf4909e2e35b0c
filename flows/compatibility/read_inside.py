"""Reads what of a session's home and volumes can depend on the image: runs beside the session, in its container.

It comes there with the reader and pyelftools in an archive, for images lack these. Programs of the session share its
memory, cores and user. It takes little of what they leave, and nothing where that isn't enough: Kubernetes has the
kernel end a container as a whole where its memory ends (`memory.oom.group`).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from flows.compatibility.facts import Home
from flows.compatibility.read_home import Bounds, Reader, tell

MOST_MEMORY = 512 << 20  # bytes
LEAST_MEMORY = 96 << 20  # bytes: Python with pyelftools takes some 40 MB, a home of thousands of files little more
CGROUP = Path("/sys/fs/cgroup")
TOO_LITTLE = "the session has too little memory left to read its home in it"


def main(asked: bytes) -> None:
    """Read the folders that `asked` (JSON) names, each with its place as the session sees it, and print the reports.

    It ends when `seconds` are over, whatever a file system does.
    """
    request = json.loads(asked)
    memory = memory_to_take(CGROUP)
    if memory < LEAST_MEMORY:
        sys.exit(TOO_LITTLE)
    _take_little(request["seconds"], memory)
    try:
        tell([asdict(_read(folder, Bounds(**request["bounds"]))) for folder in request["folders"]])
    except MemoryError:
        sys.exit(TOO_LITTLE)


def _read(folder: str, bounds: Bounds) -> Home:
    # The home is a link of the slot to its claim. The session's own user may read whatever it leads to.
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return Reader(top, folder, bounds).read()
    finally:
        os.close(top)


def memory_to_take(cgroup: Path) -> int:
    """How many bytes the reader may take: half of what the container has left, and `MOST_MEMORY` at most.

    Pages of files that nobody uses count as left, for the kernel drops them first.

    Args:
        cgroup: folder of the container's cgroup, of version 2. Without one, or a limit in it, nothing is known.
    """
    most, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if most is None or used is None:
        return MOST_MEMORY
    idle = next((int(size) for name, size in _fields(cgroup / "memory.stat") if name == "inactive_file"), 0)
    return min(MOST_MEMORY, (most - max(used - idle, 0)) // 2)


def ends_alone(cgroup: Path) -> bool:
    """Whether the kernel ends one program of a container, not all of them, where memory ends."""
    alone = _number(cgroup / "memory.oom.group") == 0
    return alone or (cgroup / "memory").is_dir()  # version 1 knows no groups


def _number(file: Path) -> int | None:
    with suppress(OSError, ValueError):  # there is none, or it is `max`
        return int(file.read_text(encoding="ascii"))
    return None


def _fields(file: Path) -> list[list[str]]:
    with suppress(OSError):
        return [line.split() for line in file.read_text(encoding="ascii").splitlines()]
    return []


def _take_little(seconds: int, memory: int) -> None:
    signal.alarm(seconds)
    os.nice(10)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if ends_alone(CGROUP):
        with suppress(OSError):  # some runtimes don't have it
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
