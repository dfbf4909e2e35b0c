"""The last lines that a container of Podman wrote."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from flows.core.programs import command
from flows.core.programs.command import ProgramFailed

_SECONDS = 60.0
_TRIES = 3


def of(call: Sequence[str], container: str, lines: int) -> str:
    """The last lines of a container, on its standard output and its standard error.

    Args:
        call: `podman logs`, as this Refit calls it.
        container: its name.
        lines: at most.
    """
    for _ in range(_TRIES):
        try:
            return _read([*call, "--tail", str(lines), container], lines)
        except ProgramFailed as error:
            # Podman 4.3 looks from the end, and fails on half a line there: one that is just being written.
            if "unable to read log file" not in error.tail:
                raise
    # Nobody will ever write the other half. From the beginning, Podman passes over it, and takes its time.
    return _read([*call, container], lines)


def _read(call: Sequence[str], lines: int) -> str:
    seen = deque[str](maxlen=lines)
    command.run(call, root=True, limit=_SECONDS, on_line=seen.append)
    return "\n".join(seen)
