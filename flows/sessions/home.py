"""Homes: what persists of a session, and the snapshots of it.

Everything runs as root, because a home is its session's alone (0700, a uid of its own). Links in a home are copied as
links and never followed: what they point at is none of ours.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from flows import command, host
from flows.errors import RefitError
from flows.sessions.model import Session, check_name
from flows.sessions.pool import Pool
from flows.sessions.sent import only_within
from flows.settings import Settings

SPARE = 250_000_000  # bytes
_COPY_LIMIT = 6 * 3600.0
_VANISHED = 24  # rsync: a file was there when it listed the folder and gone when it came to copy it
_NANOSECONDS = "--modify-window=-1"  # rsync's default compares whole seconds, and misses two writes within one


class NoRoom(RefitError):
    """A home can't be copied, because the copy would take too much space."""


class Homes:
    """The homes of all sessions on this machine and their snapshots: in the pool, if there is one, else in folders."""

    def __init__(self, settings: Settings) -> None:
        self._homes = settings.folder("homes")
        self._snapshots = settings.folder("snapshots")
        self.pool = Pool(settings)
        self.pool.ready()

    def path(self, name: str) -> Path:
        """The folder of the home `name`, there or not; one that was made before there was a pool stays where it is."""
        plain = self._homes / check_name(name)
        return self.pool.homes / name if self.pool.exists and not plain.exists() else plain

    def owners(self) -> frozenset[int]:
        """The uids that own a home, whether or not anybody remembers them."""
        folders = [self._homes, *([self.pool.homes] if self.pool.exists else [])]
        return frozenset(home.lstat().st_uid for folder in folders for home in folder.iterdir())

    def make(self, name: str, uid: int) -> Path:
        """The home of a session, made if need be: 0700, `uid`, group 0.

        Raises:
            RefitError: there is one of that name that belongs to another uid.
        """
        home = self.path(name)
        if home.exists() and home.lstat().st_uid != uid:
            raise RefitError(
                f"{home} belongs to uid {home.lstat().st_uid}, and the session's uid is {uid}.",
                why="It is the home of a session that Refit has no record of.",
                fix=f"give the session another name, or move {home} elsewhere.",
            )
        if home in self.pool:
            self.pool.make(home, uid)
        else:
            command.run(["install", "-d", "-m", "0700", "-o", str(uid), "-g", "0", home], root=True)
        return home

    def remove(self, name: str) -> None:
        """Remove a home and its snapshots for good."""
        doomed = [self._homes / check_name(name), self._snapshots / name]
        if self.pool.exists:
            snapshots = self.pool.snapshots / name
            for subvolume in (*(snapshots.iterdir() if snapshots.exists() else ()), self.pool.homes / name):
                self.pool.delete(subvolume)
            doomed.append(snapshots)
        command.run(["rm", "-rf", "--one-file-system", "--", *doomed], root=True, limit=_COPY_LIMIT)

    def copy_to_pool(self, session: Session) -> Path:
        """Copy the home of a session that is stopped into the pool, and compare every byte; returns where it is there.

        Raises:
            RefitError: the pool has no room for it, or the copy is not the same.
        """
        _refuse_mounts(session.home)
        size, free = _size(session.home), self.pool.room().free
        if missing := lacking(size, free):
            raise NoRoom(
                f"The pool has no room for the home of {session.name!r}: {_mb(missing)} are missing.",
                why=f"The home takes {_mb(size)}, and {_mb(free)} are free in {self.pool.folder}.",
            )
        home = self.pool.homes / session.name
        with self.pool.making(home, session.uid) as draft:
            _mirror(session.home, draft)
            looked_at = ["--dry-run", "--checksum", "--out-format=%i %n"]
            if differing := described(_mirror(session.home, draft, looked_at).splitlines()):
                raise RefitError(
                    f"The copy of {session.home} in the pool is not the same: {differing[0]}.",
                    why="Something writes there, though its session is stopped.",
                )
        return home

    def forget_folder(self, name: str) -> None:
        """Remove the folder in which a home was, before it was copied to the pool; it is gone as a whole, or there."""
        doomed = self._homes / f".{check_name(name)}.old"
        if (self._homes / name).exists():
            command.run(["mv", "-T", "--", self._homes / name, doomed], root=True)
        command.run(["rm", "-rf", "--one-file-system", "--", doomed], root=True, limit=_COPY_LIMIT)

    def snapshot(self, session: str, id: str) -> Path:
        """The folder of the snapshot `id` of a session's home, there or not."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", id):
            raise ValueError(f"{id!r} can't be the name of a snapshot")
        snapshots = self.pool.snapshots if self.path(session) in self.pool else self._snapshots
        return snapshots / check_name(session) / id

    def check_room(self, session: Session) -> None:
        """Find out before a move whether the disk can take a snapshot of this session's home.

        Raises:
            RefitError: it can't.
        """
        _refuse_mounts(session.home)
        where, size, shares = self._snapshots, 0, False
        if session.home in self.pool:
            self.pool.refuse_nested(session.home)
            where = self.pool.folder  # a snapshot takes nothing; what the home changes later does
        else:
            size, shares = _size(session.home), self._shares_blocks()
        free = shutil.disk_usage(where).free
        if (missing := lacking(size, free)) and not shares:
            raise NoRoom(
                f"There is no room for a snapshot of the home of {session.name!r}: {_mb(missing)} are missing.",
                why=f"The home takes {_mb(size)}, and {_mb(free)} are free in {where}. The session writes on "
                f"while it is copied, so a tenth more has to be free, and {_mb(SPARE)} for everybody else.",
                fix="make room on that disk, or let the session's owner delete what nobody needs.",
            )

    def spare(self, session: Session, folder: Path, most: int) -> Path:
        """Copy a home for a rehearsal; the session may run. What `forget_spare` removes is not in `folder`.

        Args:
            session: whose home.
            folder: where the copy goes, if it can't be a snapshot in the pool.
            most: bytes that it may take, if it can't share them with the home.

        Returns:
            Where the copy is.

        Raises:
            NoRoom: it would take more, or more than there is.
            RefitError: another file system is mounted inside the home.
        """
        _refuse_mounts(session.home)
        if session.home in self.pool:
            copy = self.pool.rehearsals / session.name
            self.pool.snapshot(session.home, copy, writable=True)
            return copy
        if not self._shares_blocks():
            size, free = _size(session.home), shutil.disk_usage(self._snapshots).free
            if size > most or lacking(size, free):
                raise NoRoom(f"the home takes {_mb(size)}; a copy may take {_mb(most)}, and {_mb(free)} are free")
        _duplicate(session.home, folder)
        return folder

    def forget_spare(self, name: str) -> None:
        """Remove the copy of a home that was made for a rehearsal in the pool."""
        if self.pool.exists:
            self.pool.delete(self.pool.rehearsals / check_name(name))

    def copy(self, session: Session, id: str) -> Path:
        """Copy the home of a running session; what changes meanwhile, `delta` brings in."""
        snapshot = self._ready(session.name, id)
        if session.home in self.pool:
            self.pool.snapshot(session.home, snapshot)
        else:
            _duplicate(session.home, snapshot)
        return snapshot

    def delta(self, session: Session, id: str) -> Path:
        """Make the snapshot equal to the home of a session that is stopped."""
        snapshot = self._ready(session.name, id)
        if session.home in self.pool:
            self.pool.snapshot(session.home, snapshot)
        else:
            _mirror(session.home, snapshot)
        return snapshot

    def differences(self, session: Session, id: str, except_paths: Collection[str] = ()) -> tuple[str, ...]:
        """What of the home is not as in the snapshot, by content, owner, mode and attributes; empty: they are equal.

        `except_paths` are what may differ: patterns of rsync, from the top of the home.
        """
        if session.home in self.pool and self._only_within(session, id, except_paths):
            return ()  # in milliseconds; else every byte is compared, to say what it is
        excluded = [f"--exclude=/{pattern.lstrip('/')}" for pattern in except_paths]
        # A folder's own time changes with every exception inside it, and says nothing that its content doesn't.
        looked_at = ["--dry-run", "--checksum", "--omit-dir-times", "--out-format=%i %n"]
        seen = _mirror(session.home, self.snapshot(session.name, id), [*looked_at, *excluded])
        return described(seen.splitlines(), except_paths)

    def restore(self, session: Session, id: str) -> None:
        """Make the home of a session that is stopped equal to its snapshot.

        Raises:
            RefitError: there is no such snapshot; the home is as it was.
        """
        snapshot = self.snapshot(session.name, id)
        if not snapshot.is_dir():
            raise RefitError(f"There is no snapshot {id!r} of the session {session.name!r}.")
        if session.home in self.pool:
            self.pool.restore(snapshot, session.home)
        else:
            _mirror(snapshot, session.home)

    def forget(self, session: str, id: str) -> None:
        """Remove one snapshot."""
        doomed = self.snapshot(session, id)
        if doomed in self.pool:
            self.pool.delete(doomed)
            return
        command.run(["rm", "-rf", "--one-file-system", "--", doomed], root=True, limit=_COPY_LIMIT)

    def _only_within(self, session: Session, id: str, paths: Collection[str]) -> bool:
        found = self.pool.touched(session.home, self.snapshot(session.name, id))
        return found is not None and only_within(found, paths)

    def _shares_blocks(self) -> bool:
        """Whether a copy of a home takes no space until the home changes, as on XFS and Btrfs."""
        with TemporaryDirectory(dir=self._snapshots) as folder:
            (original := Path(folder, "original")).write_bytes(b"x")
            tried = command.run(["cp", "--reflink=always", "--", original, Path(folder, "copy")], accepted=(0, 1))
        return tried.exit_code == 0 and self._homes.stat().st_dev == self._snapshots.stat().st_dev

    def _ready(self, session: str, id: str) -> Path:
        snapshot = self.snapshot(session, id)
        if not snapshot.parent.is_dir():
            command.run(["install", "-d", "-m", "0711", snapshot.parent], root=True)
        return snapshot


def lacking(home: int, free: int) -> int:
    """Bytes that are missing for a snapshot of a home that takes `home` bytes; 0: there is room. Pure."""
    return max(0, home + home // 10 + SPARE - free)


def described(items: Iterable[str], except_paths: Collection[str] = ()) -> tuple[str, ...]:
    """rsync's itemised lines in words; folders that are there only to hold an exception are left out. Pure."""
    holders = {str(parent) for path in except_paths for parent in PurePosixPath(path.lstrip("/")).parents}
    return tuple(
        f"{_word(code)}: {name.strip()}"
        for code, _, name in (item.partition(" ") for item in items)
        if not (code.startswith("cd+") and name.strip().rstrip("/") in holders)
    )


def _size(home: Path) -> int:
    """How many bytes of the disk a home takes; files that vanish while they are counted are no failure."""
    options = ["--summarize", "--block-size=1", "--one-file-system", "--"]
    counted = command.run(["du", *options, home], root=True, limit=_COPY_LIMIT, accepted=(0, 1)).stdout
    return int(counted.split()[0])


def _refuse_mounts(home: Path) -> None:
    if inside := [point for point in host.mounts_below(home) if point != home.resolve()]:
        raise RefitError(
            f"Other file systems are mounted inside {home}: {', '.join(map(str, inside))}.",
            why="What is in them is not in the snapshots of the home, and couldn't be brought back.",
            fix="unmount them; what a session needs besides its home is mounted elsewhere.",
        )


def _duplicate(home: Path, target: Path) -> None:
    """Make `target` a copy of a home that may be in use."""
    if not target.exists():
        # Only cp shares blocks where the file system can. Where a file vanishes it fails, and rsync does the rest.
        options = ["--archive", "--reflink=auto", "--no-target-directory", "--"]
        command.run(["cp", *options, home, target], root=True, limit=_COPY_LIMIT, accepted=(0, 1))
    _mirror(home, target)


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _word(code: str) -> str:
    if code.startswith("*deleting"):
        return "gone"
    return "new" if "+++" in code else "changed"


def _mirror(source: Path, target: Path, options: Collection[str] = ()) -> str:
    """Make the folder `target` equal to `source`; returns what rsync said."""
    same = ["--archive", "--hard-links", "--acls", "--xattrs", "--sparse", "--numeric-ids", "--delete", _NANOSECONDS]
    called = ["rsync", *same, *options, "--", f"{source}/", f"{target}/"]
    return command.run(called, root=True, limit=_COPY_LIMIT, accepted=(0, _VANISHED)).stdout
