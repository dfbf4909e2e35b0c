"""A pool for homes: a file system of btrfs in one file, in which a snapshot takes milliseconds and no space.

Each home is a subvolume. The pool is mounted when it is first needed: after a reboot, nobody has done so yet.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter, ValidationError

from flows.catalog.model import Size
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.formatting import gigabytes, on_a_line, some
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.host import mounts, tools
from flows.sessions.homes import disk_quotas, person_home_limits, subvolumes_as_root
from flows.sessions.homes.btrfs_send import touched

logger = logging.getLogger("refit.sessions")

LEAST = 1 << 30  # bytes: one home with room to change, and what btrfs needs itself
SPARE = 1 << 30  # bytes of the disk that the pool leaves to everybody else
SHORT = 0.1  # share of the pool: if less is free, somebody should make room
# The space of the file is reserved: `discard` would give it back to the disk, and others would take it.
_MOUNT = "loop,nosuid,nodev,noatime,nodiscard"
_MAKE_SECONDS = _SEND_SECONDS = 600.0
_MOST_SENT = 64 << 20  # bytes: what half a million files and folders that changed take
_SIZE: TypeAdapter[int] = TypeAdapter(Size)


@dataclass(frozen=True)
class Room:
    """How large the pool is, and how much of it is free (bytes)."""

    size: int
    free: int

    @property
    def short(self) -> bool:
        """Whether people should make room now: of a pool that is full, nobody's home can be written to."""
        return self.free < SHORT * self.size


class Pool:
    """The pool of this machine, there or not."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.home / "pool"
        self.homes, self.snapshots, self.rehearsals, self.volumes, self._removed = (
            self.folder / name for name in ("homes", "snapshots", "rehearsals", "volumes", "removed")
        )
        self._settings, self._file = settings, settings.home / "pool.btrfs"

    def __contains__(self, path: Path) -> bool:
        return path.is_relative_to(self.folder)

    @property
    def exists(self) -> bool:
        """Whether there is a pool; mounted or not."""
        return self._file.exists()

    def create(self, size: int) -> Room:
        """Make the pool: `size` bytes of the disk belong to it from now on.

        Raises:
            RefitError: there is one, the disk has no room, or this machine has no btrfs.
        """
        with one_at_a_time(self._settings.folder() / "pool.lock"):
            self._check(size)
            draft = self._file.with_suffix(".new")
            command.run(["rm", "-f", "--", draft], root=True)  # what an interrupted attempt has left
            try:
                command.run(["install", "-m", "0600", "/dev/null", draft], root=True)  # everybody's homes are in it
                command.run(["fallocate", "--length", str(size), draft], root=True, limit=_MAKE_SECONDS)
                command.run(
                    [tools.program("mkfs.btrfs") or "mkfs.btrfs", "--quiet", draft], root=True, limit=_MAKE_SECONDS
                )
                self._mount(draft)
                for folder, mode in ((self.homes, "0755"), (self.snapshots, "0755"), (self.rehearsals, "0700")):
                    command.run(["install", "-d", "-m", mode, folder], root=True)
                command.run(["mv", "-T", "--", draft, self._file], root=True)
            except BaseException:
                self._unmount()
                command.run(["rm", "-f", "--", draft], root=True)
                raise
        return self.room()

    def grow(self, size: int) -> Room:
        """Let `size` bytes of the disk belong to the pool from now on; homes are used meanwhile.

        After a kill here, doing it again does the rest.

        Raises:
            RefitError: there is no pool, it is larger, or the disk has no room.
        """
        if not self.ready():
            raise RefitError("There is no pool.", hint="`refit home pool create --size …` makes one.")
        with one_at_a_time(self._settings.folder() / "pool.lock"):
            had = self._file.stat().st_size
            if size < had:
                raise RefitError(f"The pool has {gigabytes(had)}, and can only grow.", hint="choose a larger size.")
            self._check_disk(size - had)
            command.run(["fallocate", "--length", str(size), self._file], root=True, limit=_MAKE_SECONDS)
            query: list[str | Path] = ["losetup", "--associated", self._file, "--noheadings", "--output", "NAME"]
            for device in command.run(query, root=True).stdout.split():
                command.run(["losetup", "--set-capacity", device], root=True)
            command.run(["btrfs", "filesystem", "resize", "max", self.folder], root=True, limit=_MAKE_SECONDS)
        return self.room()

    def ready(self) -> bool:
        """Whether homes can lie in the pool; it is mounted if need be.

        Raises:
            RefitError: there is a pool, and it can't be mounted: nobody's home must be taken for empty.
        """
        if self.exists and not self._mounted():
            with one_at_a_time(self._settings.folder() / "pool.lock"):
                if not self._mounted():
                    self._mount(self._file)
        return self.exists

    def room(self) -> Room:
        """How large it is, and how much is free."""
        usage = shutil.disk_usage(self.folder)
        return Room(usage.total, usage.free)

    def make(self, home: Path, uid: int) -> None:
        """Make an empty home or volume, if there is none: 0700, `uid`, group 0; at no moment it is another's.

        One that is there gets the limit that the settings say now.
        """
        if not home.exists():
            with self.making(home, uid):
                pass
        self._bound(home)

    def _bound(self, *folders: Path) -> None:
        """Let homes and volumes have so many bytes each as they may, where this kernel can see to that."""
        for folder in folders:
            try:
                subvolumes_as_root.as_root("limit", folder, Path(str(self._most(folder))))
            except (OSError, ProgramFailed) as error:
                logger.warning("%s has no limit: %s", folder, error)

    @property
    def general_limit(self) -> int:
        """Bytes that a home or a volume may take whose person has no limit of their own; 0: as many as there are."""
        chosen = self._settings.session_home
        return round(chosen * 1e9) if not isinstance(chosen, str) else self._share(float(chosen.rstrip("%")) / 100)

    def use(self, folder: Path) -> tuple[int, int] | None:
        """Bytes that a home or a volume takes, and may take (0: as many as there are); none: nobody counts them."""
        try:
            return subvolumes_as_root.use_as_root(folder) if self.ready() else None
        except (OSError, ProgramFailed) as error:
            logger.info("how much %s takes can't be told: %s", folder, error)
            return None

    def _most(self, folder: Path) -> int:
        """Bytes that a home, a volume or a copy for a rehearsal may take; 0: as many as there are."""
        general = self.general_limit
        kind, name, *_ = (*folder.relative_to(self.folder).parts, "")
        if kind == self.rehearsals.name:
            own = person_home_limits.largest(self._settings)
            return 0 if 0 in (own, general) else max(own or 0, general)
        own = person_home_limits.of(self._settings, name)
        return general if own is None else own

    def _share(self, share: float) -> int:
        return int(shutil.disk_usage(self.folder).total * share)

    @property
    def bounds_homes(self) -> bool:
        """Whether homes and volumes in the pool have limits."""
        return disk_quotas.has_quotas(self.folder)

    @contextmanager
    def making(self, home: Path, uid: int) -> Iterator[Path]:
        """Make a home in the place of what is there; it is filled inside the `with` block, and whole or not there."""
        draft = home.with_name(f".{home.name}.new")
        if not home.parent.exists():
            command.run(["install", "-d", "-m", "0755", home.parent], root=True)
        self.delete(draft)
        subvolumes_as_root.as_root("create", draft)
        command.run(["install", "-d", "-m", "0700", "-o", str(uid), "-g", "0", draft], root=True)
        yield draft
        self.delete(home)
        command.run(["mv", "-T", "--", draft, home], root=True)

    def snapshot(self, pairs: Sequence[tuple[Path, Path]], *, writable: bool = False) -> None:
        """Let each second of a pair be what the first is now, in the place of what it was: all of them, or none.

        Raises:
            RefitError: there are subvolumes inside a first: a snapshot would have an empty folder in their place; or
                the pool or somebody's share of it is full.
        """
        try:
            self._do("take-writable" if writable else "take", pairs)
            if writable:
                self._bound(*(target for _, target in pairs))
        except RefitError:
            for source, _ in pairs:
                self.refuse_nested(source)
            raise

    def restore(self, pairs: Sequence[tuple[Path, Path]]) -> None:
        """Let each second of a pair be what the snapshot before it is: all of them, or none; `sweep` deletes the rest.

        Raises:
            RefitError: the pool or somebody's share of it is full.
        """
        self._do("restore", pairs, self._removed)
        self._bound(*(home for _, home in pairs))

    def sweep(self) -> None:
        """Delete what was in the place of a home before it went back: for minutes, if it had millions of files."""
        try:
            if self.exists:
                subvolumes_as_root.as_root("sweep", self._removed)
        except (OSError, ProgramFailed) as error:  # the next one does
            logger.warning("not all of %s can be deleted: %s", self._removed, error)

    def _do(self, verb: str, pairs: Sequence[tuple[Path, Path]], *before: Path) -> None:
        try:
            subvolumes_as_root.as_root(verb, *before, *chain.from_iterable(pairs))
        except (OSError, ProgramFailed) as error:
            raise RefitError(
                f"The pool can't have a copy of {', '.join(str(source) for source, _ in pairs)}.",
                why=str(error),
                hint="`refit home pool` says how full it is, and `refit home pool grow` gives it more.",
            ) from error

    def delete(self, subvolume: Path) -> None:
        """Delete a subvolume, with those that are inside; none there is no error."""
        try:
            subvolumes_as_root.as_root("delete", subvolume)
        except (OSError, ProgramFailed):  # what is not empty of others can't be deleted
            subvolumes_as_root.as_root("delete-all", subvolume)

    def touched(self, home: Path, snapshot: Path) -> frozenset[str] | None:
        """The paths of a home that are not as in its snapshot, however large both are; none: nobody knows."""
        current = snapshot.with_name(f".{snapshot.name}.now")
        self.snapshot([(home, current)])
        try:
            with TemporaryDirectory() as folder:
                stream = Path(folder, "stream")
                options = ["--quiet", "--no-data", "-p", str(snapshot), "-f", str(stream)]
                command.run(["btrfs", "send", *options, current], root=True, limit=_SEND_SECONDS)
                if stream.stat().st_size > _MOST_SENT:
                    return None
                shown = ["btrfs", "receive", "--dump", "-f", str(stream)]
                return touched(command.run(shown, root=True, limit=_SEND_SECONDS, secret=True).stdout)
        finally:
            self.delete(current)

    def refuse_nested(self, home: Path) -> None:
        """Find out whether a home is one subvolume; anybody may make some in their own folders.

        Raises:
            RefitError: there are others inside.
        """
        if inside := subvolumes_as_root.nested_as_root(home):
            raise RefitError(
                f"There are subvolumes of their own inside {home}: {some(map(on_a_line, inside))}.",
                why="A snapshot doesn't hold what is in them, and it couldn't be brought back.",
                hint="let the owner move what is in them into plain folders, and remove them: rmdir does, once empty.",
            )

    def _check(self, size: int) -> None:
        if tools.program("mkfs.btrfs") is None:
            raise RefitError("The program 'mkfs.btrfs' is not installed.", hint="install the package btrfs-progs.")
        if self.exists:
            raise RefitError(f"There is a pool already: {self._file}.", hint="`refit home pool` shows it.")
        if size < LEAST:
            raise RefitError(f"A pool has {LEAST >> 30} GiB at least.", hint="choose a larger size.")
        self._check_disk(size)
        if "btrfs" not in Path("/proc/filesystems").read_text(encoding="ascii").split():
            command.run(["modprobe", "btrfs"], root=True)

    def _check_disk(self, more: int) -> None:
        free = shutil.disk_usage(self._settings.folder()).free
        if more and more + SPARE > free:
            raise RefitError(
                f"There is no room for {gigabytes(more)} of a pool.",
                why=f"{gigabytes(free)} are free in {self._settings.home}, and {gigabytes(SPARE)} stay for others.",
                hint="choose a smaller size, or make room.",
            )

    def _mounted(self) -> bool:
        return self.folder in mounts.mounts_below(self.folder)

    def _mount(self, file: Path) -> None:
        if not self._mounted():
            # Without the pool nobody can make a home there that would vanish below it.
            command.run(["install", "-d", "-m", "0755", self.folder], root=True)
            command.run(["mount", "--types", "btrfs", "--options", _MOUNT, file, self.folder], root=True)

    def _unmount(self) -> None:
        if self._mounted():
            command.run(["umount", self.folder], root=True)


def read_size(text: str) -> int:
    """Bytes, from a number with its unit. Pure.

    Raises:
        RefitError: it is no size.
    """
    try:
        return _SIZE.validate_python(text)
    except ValidationError:
        raise RefitError(
            f"{text!r} is no size.", hint="write a number with MB, GB, MiB or GiB, e.g. '50 GB'."
        ) from None
