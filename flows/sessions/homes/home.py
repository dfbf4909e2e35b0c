"""Homes and volumes: what persists of a session, and the snapshots of it, which are of all that is its own, or of none.

Everything runs as root, because a home is its session's alone (0700, a uid of its own), and what touches anything in
one is `enclosed`. Links in a home are copied as links and never followed: what they point at is none of ours.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.core import command
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions.homes import copying
from flows.sessions.homes.btrfs_send import only_within
from flows.sessions.homes.group_access import open_to_group
from flows.sessions.homes.pool import Pool
from flows.sessions.homes.space_reservation import SPARE, NoRoom, lacking, mb, reserved
from flows.sessions.homes.volumes import Part, Wanted, is_own, parts
from flows.sessions.model import Session, Volume, check_name


class LocalHomes:
    """Implements `engine.Homes` on this machine: in the pool, if there is one, else in folders."""

    def __init__(self, settings: Settings) -> None:
        self._homes, self._volumes = settings.folder("homes"), settings.folder("volumes")
        self._shared = settings.folder("shared")
        self._snapshots, self._notes = settings.folder("snapshots"), settings.folder("room")
        self._copy_seconds, self._compare_seconds = (
            settings.copy_timeout_minutes * 60,
            settings.compare_timeout_minutes * 60,
        )
        self._most_files = settings.home_files
        self.pool = Pool(settings)
        self.pool.ready()

    def path(self, name: str) -> Path:
        """The folder of the home `name`, there or not; one that was made before there was a pool stays where it is."""
        plain = self._homes / check_name(name)
        return self.pool.homes / name if self.pool.exists and not plain.exists() else plain

    def volume(self, session: str, name: str) -> Path:
        """The folder of a session's own volume, there or not: beside the session's home."""
        plain = self._volumes / check_name(session) / check_name(name)
        beside = self.path(session) in self.pool and not plain.exists()
        return self.pool.volumes / session / name if beside else plain

    def volumes(self, session: str) -> dict[str, Path]:
        """The volumes of a session that are there, also of one that is gone: name → folder."""
        folders = [self._volumes / check_name(session)]
        folders += [self.pool.volumes / session] if self.pool.exists else []
        found = [volume for folder in folders if folder.is_dir() for volume in folder.iterdir()]
        return {volume.name: volume for volume in sorted(found) if not volume.name.startswith(".")}

    def shared(self) -> dict[str, Path]:
        """The volumes that sessions share: name → folder."""
        return {folder.name: folder for folder in sorted(self._shared.iterdir())}

    def mounted(self, session: str, wanted: Wanted) -> Volume:
        """A volume that a session is to have: the shared one of that name, if there is one, else its own.

        Raises:
            RefitError: there are both.
        """
        shared, own = self.shared().get(wanted.name), self.volume(session, wanted.name)
        if shared and own.exists():
            raise RefitError(
                f"There are two volumes {wanted.name!r}: one that was kept of {session!r}, and one that all share.",
                hint=f"remove the one that nobody needs: `refit volume rm {session}/{wanted.name}`, for instance.",
            )
        folder = shared or own
        return Volume(wanted.name, wanted.path, folder, wanted.read_only, shared=bool(shared))

    def owners(self) -> dict[str, int]:
        """Home → the uid that owns it, of all that are there, whether or not anybody remembers them."""
        folders = [*([self.pool.homes] if self.pool.exists else []), self._homes]
        return {home.name: home.lstat().st_uid for folder in folders for home in folder.iterdir()}

    def make(self, name: str, uid: int) -> Path:
        """The home of a session, made if need be: 0700, `uid`, group 0.

        Raises:
            RefitError: there is one of that name that belongs to another uid.
        """
        return self._make(self.path(name), uid)

    def make_volumes(self, session: Session) -> None:
        """Make the volumes of a session that it owns, if need be.

        Raises:
            RefitError: one belongs to another uid, or one that it shares is gone.
        """
        for volume in session.volumes:
            if not volume.shared:
                self._make(volume.folder, session.uid)
            elif not volume.folder.is_dir():
                raise RefitError(
                    f"The volume {volume.name!r} of the session {session.name!r} is gone.",
                    why=f"Sessions shared it, and {volume.folder} isn't there.",
                    hint=f"bring it back, or make an empty one: `refit volume create {volume.name} --shared`.",
                )

    def make_shared(self, name: str) -> Path:
        """Make a volume for sessions to share: all of them read and write what any of them makes there.

        Raises:
            RefitError: there is one of that name.
        """
        folder = self._shared / check_name(name)
        if folder.exists():
            raise RefitError(f"There is a volume {name!r} already.", hint="`refit volume list` shows all.")
        command.run(["install", "-d", "-m", "0770", "-o", "0", "-g", "0", folder], root=True)
        # All sessions are of group 0; without this, what one of them makes would be read-only for the others.
        open_to_group(folder)
        return folder

    def remove_volume(self, folder: Path) -> None:
        """Remove one volume for good; snapshots of it stay with those of the home."""
        if folder in self.pool:
            self.pool.delete(folder)
        else:
            copying.remove(folder)

    def _make(self, folder: Path, uid: int) -> Path:
        if folder.exists() and folder.lstat().st_uid != uid:
            raise RefitError(
                f"{folder} belongs to uid {folder.lstat().st_uid}, and the session's uid is {uid}.",
                why="It is of a session that Refit has no record of.",
                hint=f"give the session another name, or move {folder} elsewhere.",
            )
        if folder in self.pool:
            self.pool.make(folder, uid)
        else:
            if not folder.parent.exists():
                command.run(["install", "-d", "-m", "0755", folder.parent], root=True)
            command.run(["install", "-d", "-m", "0700", "-o", str(uid), "-g", "0", folder], root=True)
        return folder

    def remove(self, name: str) -> None:
        """Remove a home, its volumes and all snapshots for good."""
        doomed = [self._homes / check_name(name), self._volumes / name, self._snapshots / name]
        if self.pool.exists:
            folders = [self.pool.snapshots / name, self.pool.volumes / name]
            inside = (subvolume for folder in folders if folder.exists() for subvolume in folder.iterdir())
            for subvolume in (*inside, self.pool.homes / name):
                self.pool.delete(subvolume)
            doomed += folders
        for folder in doomed:
            copying.remove(folder)

    def copy_to_pool(self, session: Session) -> Session:
        """Copy home and volumes of a session that is stopped into the pool, and compare every byte.

        Returns:
            The session with its home and volumes there.

        Raises:
            RefitError: the pool has no room for them, or a copy is not the same.
        """
        volumes = self.volumes(session.name)
        moving = {session.home: self.pool.homes / session.name}
        moving |= {folder: self.pool.volumes / session.name / name for name, folder in volumes.items()}
        for folder in moving:
            copying.refuse_mounts(folder)
        size, free = copying.extent_of(moving, self._most_files).size, self.pool.room().free
        if missing := lacking(size, free):
            raise NoRoom(
                f"The pool has no room for the home of {session.name!r}: {mb(missing)} are missing.",
                why=f"With its volumes it takes {mb(size)}, and {mb(free)} are free in {self.pool.folder}.",
            )
        for source, target in moving.items():
            self._copy_to_pool(source, target, session.uid)
        there = tuple(replace(volume, folder=moving.get(volume.folder, volume.folder)) for volume in session.volumes)
        return replace(session, home=moving[session.home], volumes=there)

    def _copy_to_pool(self, source: Path, target: Path, uid: int) -> None:
        with self.pool.making(target, uid) as draft:
            copying.mirror(source, draft, self._copy_seconds)
            if differing := copying.differing(source, draft, self._compare_seconds):
                raise RefitError(
                    f"The copy of {source} in the pool is not the same: {copying.described(differing)[0]}.",
                    why="Something writes there, though its session is stopped.",
                )

    def forget_folder(self, name: str) -> None:
        """Remove the folders of home and volumes that were copied to the pool; each is gone as a whole, or there."""
        for folders in (self._volumes, self._homes):
            doomed = folders / f".{check_name(name)}.old"
            if (folders / name).exists():
                command.run(["mv", "-T", "--", folders / name, doomed], root=True)
            copying.remove(doomed)

    def snapshot(self, session: str, id: str) -> Path:
        """The folder of the snapshot `id` of a session's home, there or not."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", id):
            raise ValueError(f"{id!r} can't be the name of a snapshot")
        snapshots = self.pool.snapshots if self.path(session) in self.pool else self._snapshots
        return snapshots / check_name(session) / id

    def has_snapshot(self, session: str, id: str) -> bool:
        """Whether there is a snapshot `id` of a session's home."""
        return self.snapshot(session, id).is_dir()

    def check_room(self, session: Session) -> None:
        """Find out before a move whether the disk can take a snapshot of this session's home and volumes.

        Raises:
            RefitError: it can't.
        """
        size = self._refuse_what_cant_be_copied(session)
        pooled = any(part.folder in self.pool for part in parts(session))
        # In the pool a snapshot takes nothing; what the home changes later does.
        for needed, where in (
            *([(0, self.pool.folder)] if pooled else []),
            *([(size, self._snapshots)] if size else []),
        ):
            free = shutil.disk_usage(where).free
            if missing := lacking(needed, free):
                raise NoRoom(
                    f"There is no room for a snapshot of the home of {session.name!r}: {mb(missing)} are missing.",
                    why=f"The home{' with its volumes' if session.volumes else ''} takes {mb(needed)}, and {mb(free)} "
                    f"are free in {where}. The session writes on while it is copied, so a tenth more has to be free, "
                    f"and {mb(SPARE)} for everybody else.",
                    hint="make room on that disk, or let the session's owner delete what nobody needs.",
                )

    def _refuse_what_cant_be_copied(self, session: Session) -> int:
        """Bytes that copies of home and volumes take on the disk; in the pool and where files share blocks, 0."""
        for part in parts(session):
            copying.refuse_mounts(part.folder)
            if part.folder in self.pool:
                self.pool.refuse_nested(part.folder)
        outside = [part.folder for part in parts(session) if part.folder not in self.pool]
        size = copying.extent_of(outside, self._most_files).size
        return size if size and not self._shares_blocks() else 0

    def spare(self, session: Session, folder: Path, most: int) -> Session:
        """Copy home and volumes for a rehearsal; the session may run. What `forget_spare` removes is not in `folder`.

        Args:
            session: whose home and volumes.
            folder: where the copy of the home goes, if it can't be a snapshot in the pool; volumes go beside it.
            most: bytes that all copies may take, if they can't share them with what is there.

        Returns:
            The session as it can be rehearsed: with the copies, and read-only what it shares.

        Raises:
            NoRoom: they would take more, or more than there is.
            RefitError: another file system is mounted inside, or a subvolume.
        """
        size, free = self._refuse_what_cant_be_copied(session), shutil.disk_usage(self._snapshots).free
        if size and (size > most or lacking(size, free)):
            raise NoRoom(f"the home takes {mb(size)}; a copy may take {mb(most)}, and {mb(free)} are free")
        pool = self.pool.rehearsals / session.name
        copies = {part: part.beside(pool if part.folder in self.pool else folder) for part in parts(session)}
        with reserved(self._notes, self._snapshots, size):
            self._take(((part.folder, copy) for part, copy in copies.items()), self._duplicate, writable=True)
        own = {part.volume: copy for part, copy in copies.items()}
        volumes = tuple(
            replace(volume, folder=own[volume.name]) if is_own(volume) else replace(volume, read_only=True)
            for volume in session.volumes
        )
        return replace(session, home=own[""], volumes=volumes)

    def forget_spare(self, name: str) -> None:
        """Remove the copies of home and volumes that were made for a rehearsal in the pool."""
        if self.pool.exists:
            for copy in copying.all_of(self.pool.rehearsals / check_name(name)):
                self.pool.delete(copy)

    def copy(self, session: Session, id: str) -> Path:
        """Copy home and volumes of a running session; what changes meanwhile, `delta` brings in.

        Returns the copy of the home; those of the volumes are beside it.

        Raises:
            NoRoom: there is no room for them on the disk; where other copies take it, this one waits for them.
        """
        if size := self._refuse_what_cant_be_copied(session):
            there = copying.all_of(self.snapshot(session.name, id))  # by an attempt that was interrupted
            size = max(0, size - copying.extent_of(there, self._most_files).size)
        with reserved(self._notes, self._snapshots, size):
            try:
                return self._take_all(session, id, self._duplicate)
            except RefitError:
                self.forget(session.name, id)  # on a disk that may be full, half a copy is in everybody's way
                raise

    def delta(self, session: Session, id: str) -> Path:
        """Make the snapshot equal to home and volumes of a session that is stopped; in the pool, all or none."""
        return self._take_all(session, id, self._mirror)

    def differences(
        self, session: Session, id: str, except_paths: Collection[str] = (), *, at_a_glance: bool = False
    ) -> tuple[str, ...]:
        """What of home and volumes is not as in the snapshot, by content, owner, mode and attributes; empty: nothing.

        Args:
            session: whose home and volumes.
            id: the snapshot.
            except_paths: what may differ in the home: patterns of rsync, from the top of it.
            at_a_glance: somebody waits: files of the same size and time (ns) count as the same.

        Raises:
            NobodyKnows: that takes too long.
        """
        snapshot, found = self.snapshot(session.name, id), list[str]()
        for part in parts(session):
            excepted = () if part.volume else except_paths
            found += map(part.named, self._differences(part, part.beside(snapshot), excepted, at_a_glance))
        return tuple(found)

    def _differences(
        self, part: Part, snapshot: Path, except_paths: Collection[str], at_a_glance: bool
    ) -> tuple[str, ...]:
        touched = self.pool.touched(part.folder, snapshot) if part.folder in self.pool else None
        if touched is not None and only_within(touched, except_paths):
            return ()  # in milliseconds; else every byte is compared, to say what it is
        excluded = [f"/{pattern.lstrip('/')}" for pattern in except_paths]
        seen = copying.differing(part.folder, snapshot, self._compare_seconds, excluded, at_a_glance=at_a_glance)
        return copying.described(seen, except_paths)

    def restore(self, session: Session, id: str) -> None:
        """Make home and volumes of a session that is stopped equal to their snapshot.

        In the pool that is all of them or none; elsewhere, who is killed here does the rest by doing it again.

        Raises:
            RefitError: the snapshot of one of them isn't there; all are as they were.
        """
        snapshot = self.snapshot(session.name, id)
        ways = [(part.beside(snapshot), part.folder) for part in parts(session)]
        if missing := [source for source, _ in ways if not source.is_dir()]:
            raise RefitError(
                f"There is no snapshot {id!r} of the session {session.name!r}.", why=f"{missing[0]} isn't there."
            )
        if pooled := [way for way in ways if way[1] in self.pool]:
            self.pool.restore(pooled)
        for source, folder in ways:
            if folder not in self.pool:
                copying.give_back(source, folder, self._copy_seconds)

    def forget(self, session: str, id: str) -> None:
        """Remove one snapshot, of the home and of the volumes."""
        for doomed in copying.all_of(self.snapshot(session, id)):
            if doomed in self.pool:
                self.pool.delete(doomed)
            else:
                copying.remove(doomed)

    def _duplicate(self, home: Path, target: Path) -> None:
        copying.duplicate(home, target, self._copy_seconds)

    def _mirror(self, home: Path, target: Path) -> None:
        copying.mirror(home, target, self._copy_seconds)

    def _take_all(self, session: Session, id: str, by: Callable[[Path, Path], object]) -> Path:
        snapshot = self._ready(session.name, id)
        self._take(((part.folder, part.beside(snapshot)) for part in parts(session)), by)
        return snapshot

    def _take(
        self, pairs: Iterable[tuple[Path, Path]], by: Callable[[Path, Path], object], *, writable: bool = False
    ) -> None:
        """Let each second of a pair be what the first is; `by` copies what isn't in the pool."""
        known = list(pairs)
        if pooled := [pair for pair in known if pair[0] in self.pool]:
            self.pool.snapshot(pooled, writable=writable)
        for source, target in known:
            if source not in self.pool:
                by(source, target)

    def _shares_blocks(self) -> bool:
        """Whether a copy of a home takes no space until the home changes, as on XFS and Btrfs."""
        with TemporaryDirectory(dir=self._snapshots) as folder:
            return copying.shares_blocks(Path(folder)) and self._homes.stat().st_dev == self._snapshots.stat().st_dev

    def _ready(self, session: str, id: str) -> Path:
        snapshot = self.snapshot(session, id)
        if not snapshot.parent.is_dir():
            command.run(["install", "-d", "-m", "0711", snapshot.parent], root=True)
        return snapshot
