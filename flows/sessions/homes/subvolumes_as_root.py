"""Verbs on subvolumes, as root, whoever calls: in this process where it is root's, else by a program."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from flows.core import fence
from flows.core.programs import command
from flows.sessions.homes import disk_quotas, subvolumes


def as_root(verb: str, *paths: Path) -> None:
    """Do one of `subvolumes.VERBS`; as root, whoever calls.

    Raises:
        OSError, ProgramFailed: it can't be done.
    """
    # A verb that would take back somebody's work runs as a program, which starts only while the lease is ours (see
    # `fence`).
    if os.geteuid() == 0 and verb != "restore":
        fence.check()
        subvolumes.VERBS[verb](*paths)
    else:
        command.run([sys.executable, "-I", "-m", subvolumes.__name__, verb, *paths], root=True)


def nested_as_root(path: Path) -> tuple[str, ...]:
    """`subvolumes.nested`; as root, whoever calls."""
    if os.geteuid() == 0:
        return subvolumes.nested(path)
    output = command.run([sys.executable, "-I", "-m", subvolumes.__name__, "nested", path], root=True).stdout
    return tuple(json.loads(output))


def use_as_root(path: Path) -> tuple[int, int] | None:
    """`disk_quotas.use`; as root, whoever calls.

    Raises:
        OSError, ProgramFailed: there is no such subvolume.
    """
    if os.geteuid() == 0:
        return disk_quotas.use(path)
    usage = json.loads(command.run([sys.executable, "-I", "-m", subvolumes.__name__, "use", path], root=True).stdout)
    return (usage[0], usage[1]) if usage else None
