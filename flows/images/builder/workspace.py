"""Where one build happens, so that nothing of it stays: not after success, not after failure, not after `kill -9`.

Each build has a folder `running/build-…` in the home, with the name of the process that owns it and of the programs
that it started. All builders hold one lock together; one that gets it alone may clear buildah's storage of what dead
builds left in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import geteuid, getpid
from pathlib import Path
from uuid import uuid4

from flows.core import fence
from flows.core.file_locks import if_alone, one_at_a_time
from flows.core.programs import command, process_records
from flows.core.programs.process_records import ProcessId
from flows.core.settings import Settings
from flows.host import tools
from flows.host.mounts import mounts_below
from flows.images.builder import confined_space

_RECOVERY = "recovery"  # the lock of whoever looks into folders that others remove


@contextmanager
def workspace(settings: Settings) -> Iterator[Path]:
    """A folder for one build; programs that run inside the `with` block are known to `recover`."""
    folder = settings.folder("running") / f"build-{uuid4().hex[:16]}"
    try:
        with one_at_a_time(_builds(settings), shared=True):
            _make(folder)
            with command.recorded(folder / "processes"):
                yield folder
    except BaseException:
        (folder / "owner").unlink(missing_ok=True)
        with fence.lifted():  # a folder of our own, and what dead builds have left
            recover(settings)
        raise
    with one_at_a_time(settings.folder("locks") / _RECOVERY), fence.lifted():
        _remove(folder)
    recover(settings)  # what failed beside it could not be cleared as long as this was built


def _make(folder: Path) -> None:
    """Make the folder of a build; there is no moment in which it seems to have no owner."""
    draft = folder.with_name(f"new-{folder.name}")
    draft.mkdir(mode=0o700)
    me = ProcessId.of(getpid())
    (draft / "owner").write_text(f"{me.pid} {me.boot} {me.started}" if me else "")
    draft.rename(folder)


def recover(settings: Settings) -> int:
    """End what dead builds left running, and remove their containers, mounts and folders; returns how many they were.

    While other builds run, containers and folders stay for the next call.
    """
    with one_at_a_time(settings.folder("locks") / _RECOVERY):
        dead = [folder for folder in sorted(settings.folder("running").glob("build-*")) if not _owned(folder)]
        for folder in dead:
            process_records.end_recorded(folder / "processes")
        if dead:
            with if_alone(_builds(settings)) as held:
                if held:
                    _clear_storage(settings)
                    for folder in (*dead, *settings.folder("running").glob("new-build-*")):
                        confined_space.clear(folder, settings)
                        _remove(folder)
    return len(dead)


@contextmanager
def no_builds(settings: Settings) -> Iterator[None]:
    """Wait until nothing is built on this machine, and let nothing begin inside the `with` block."""
    with one_at_a_time(_builds(settings)):
        yield


def _builds(settings: Settings) -> Path:
    """The lock that builds share."""
    return settings.folder("locks") / "builds"


def _owned(folder: Path) -> bool:
    try:
        pid, boot, started = (folder / "owner").read_text().split()
    except (OSError, ValueError):
        return False
    return ProcessId(int(pid), boot, started).alive


def _clear_storage(settings: Settings) -> None:
    if tools.builds(settings).is_dir():
        command.run([*tools.buildah(settings), "rm", "--all"], root=True)
    for mount in mounts(settings):
        command.run(["umount", "--lazy", mount], root=True)


def mounts(settings: Settings) -> tuple[Path, ...]:
    """The root filesystems of working containers that are mounted now."""
    return tuple(point for point in mounts_below(tools.builds(settings) / "overlay") if point.name == "merged")


def _remove(folder: Path) -> None:
    if geteuid() == 0 and not mounts_below(folder):  # to start a program takes longer than this
        shutil.rmtree(folder)
    else:  # programs that ran as root left files of root's
        command.run(["rm", "-rf", "--one-file-system", folder], root=True)
