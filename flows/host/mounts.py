"""The mounts of this machine."""

from __future__ import annotations

import re
from pathlib import Path


def mounts_below(folder: Path) -> tuple[Path, ...]:
    """Mount points at or below `folder`, in the order in which they were mounted."""
    lines, top = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines(), folder.resolve()
    return tuple(point for point in map(mount_point, lines) if point.is_relative_to(top))


def mount_point(line: str) -> Path:
    """Where something is mounted, by a line of `/proc/<pid>/mountinfo`. Pure."""
    # Spaces, tabs, newlines and backslashes stand there as octal numbers: proc(5).
    return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4]))
