"""The file system and the group of processes that a confined build has for itself; nothing of them outlives it.

The file system lies in a sparse file of the build's folder. The group of processes has the names of home and folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.core import fence
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.host.mounts import mounts_below

STORE = "store"  # in the folder of a build: where its file system is mounted
_DISK = "store.btrfs"
_CGROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))  # of version 1, and of version 2
# Ends what is left in groups of processes, and removes these; a process that was killed is in them until it is gone.
_END = """\
for again in 1 2 3 4 5 6 7 8 9 10; do
    cat "$1"/*/cgroup.procs "$1"/cgroup.procs 2>/dev/null | xargs -r kill -9 2>/dev/null
    find "$@" -depth -type d -exec rmdir {} + && exit 0
    sleep 0.2
done
"""


@contextmanager
def confined_space(work: Path, settings: Settings) -> Iterator[None]:
    """Bound the disk and the number of processes of the build in `work` inside the `with` block.

    Raises:
        RefitError: the disk lacks the room that a build may take.
    """
    size = int(settings.personal_builds.disk_gb * 1e9)
    if shutil.disk_usage(work).free < size:
        raise RefitError(
            f"The disk has less than {size / 1e9:g} GB left, which a build of a person's own profile may take.",
            hint="make room, or lower `personal_builds.disk_gb`.",
        )
    (work / STORE).mkdir(mode=0o700)
    try:
        _mount(work, size)
        _limit_processes(cgroup(work, settings), settings.personal_builds.processes)
        yield
    finally:
        with fence.lifted():
            clear(work, settings)


def clear(work: Path, settings: Settings) -> None:
    """End the processes of the build in `work`, and remove its file system; nothing, where it has none."""
    store = work / STORE
    if not store.is_dir():
        return
    command.run(["sh", "-c", _END, "sh", *_everywhere(cgroup(work, settings))], root=True, accepted=(0, 1))
    for point in reversed(mounts_below(store)):
        command.run(["umount", "--lazy", point], root=True, accepted=(0, 1, 32))
    command.run(["rm", "-rf", "--one-file-system", work / _DISK, store], root=True)


def cgroup(work: Path, settings: Settings) -> Path:
    """The group of processes of the build in `work`, in the hierarchy that bounds how many they are."""
    top = next((folder for folder in _CGROUPS if folder.is_dir()), _CGROUPS[-1])
    return top / f"{tools.runtime_folder(settings).name}-{work.name}"


def _mount(work: Path, size: int) -> None:
    store, disk = work / STORE, work / _DISK
    disk.touch(mode=0o600)
    command.run(["truncate", "--size", str(size), disk], root=True)
    command.run([tools.program("mkfs.btrfs") or "mkfs.btrfs", "--quiet", disk], root=True)
    command.run(["mount", "-t", "btrfs", "-o", "loop,nodev,noatime", disk, store], root=True)
    command.run(["install", "-d", "-m", "0755", "--", store / "tmp", store / "storage", store / "run"], root=True)


def _limit_processes(folder: Path, most: int) -> None:
    script = 'mkdir -p "$1" && echo "$2" >"$1/pids.max"'
    command.run(["sh", "-c", script, "sh", folder, str(most)], root=True)


def _everywhere(folder: Path) -> list[Path]:
    """The group as all hierarchies have it: with version 1, each has one of its own."""
    others = folder.parent.parent.glob(f"*/{folder.name}") if folder.parent.name == "pids" else ()
    return [folder, *(other for other in others if other != folder)]
