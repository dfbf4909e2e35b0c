"""Snapshots of homes and volumes, which are of all that is a session's own, or of none; and copies for rehearsals."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.core.errors import RefitError
from flows.core.formatting import megabytes
from flows.core.programs import command
from flows.core.programs.command import CommandTimeout, ProgramFailed
from flows.core.settings import Settings
from flows.sessions.homes import copying, enclosed, files_back, snapshot_notes
from flows.sessions.homes.btrfs_send import only_within
from flows.sessions.homes.folders import beside, folder_of, ref_of
from flows.sessions.homes.pool import Pool
from flows.sessions.homes.space_reservation import SPARE, NoRoom, lacking, reserved
from flows.sessions.homes.volumes import Part, is_own, parts
from flows.sessions.model import HomeRef, Session, check_name
from flows.sessions.podman_only import only_on_podman

SIZE_SECONDS = 10.0


class HomeSnapshots:
    """The snapshots of homes on this machine: in the pool, where the home is there, else in folders."""

    keeps_snapshots = True

    def __init__(self, settings: Settings) -> None:
        only_on_podman(settings, "Homes in folders and in the pool of this machine")
        self._homes, self._snapshots = settings.folder("homes"), settings.folder("snapshots")
        self._notes, self._spares = settings.folder("room"), settings.folder("spares")
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

    def home_of(self, name: str) -> HomeRef:
        """The home of the session `name`, there or not."""
        return ref_of(self.path(name))

    def snapshot_place(self, session: str, id: str) -> str:
        """Where a person finds the snapshot `id` of a session's home: its folder."""
        return str(self.snapshot(session, id))

    def snapshot(self, session: str, id: str) -> Path:
        """The folder of the snapshot `id` of a session's home, there or not."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", id):
            raise ValueError(f"{id!r} can't be the name of a snapshot")
        return self._snapshots_of(session) / check_name(session) / id

    def _snapshots_of(self, session: str) -> Path:
        return self.pool.snapshots if self.path(session) in self.pool else self._snapshots

    def has_snapshot(self, session: str, id: str) -> bool:
        """Whether there is a snapshot `id` of a session's home."""
        return self.snapshot(session, id).is_dir()

    def note(self, session: str, id: str, text: str) -> None:
        """Write beside a snapshot that is whole what it is; `forget` removes that."""
        snapshot_notes.write(self._snapshots_of(session), session, id, text)

    def notes(self, session: str) -> tuple[str, ...]:
        """The notes about a session's snapshots."""
        return snapshot_notes.read(self._snapshots_of(session), session)

    def check_room(self, session: Session) -> None:
        """Find out before a move whether the disk can take a snapshot of this session's home and volumes.

        Raises:
            RefitError: it can't.
        """
        size = self._refuse_what_cant_be_copied(session)
        pooled = any(folder_of(part.ref) in self.pool for part in parts(session))
        # In the pool a snapshot takes nothing; later changes of the home do.
        for needed, where in (
            *([(0, self.pool.folder)] if pooled else []),
            *([(size, self._snapshots)] if size else []),
        ):
            free = shutil.disk_usage(where).free
            if missing := lacking(needed, free):
                raise NoRoom(
                    f"There is no room for a snapshot of the home of {session.name!r}: "
                    f"{megabytes(missing)} are missing.",
                    why=f"The home{' with its volumes' if session.volumes else ''} takes {megabytes(needed)}, "
                    f"and {megabytes(free)} are free in {where}. "
                    f"The session writes on while it is copied, so a tenth more has to be free, "
                    f"and {megabytes(SPARE)} for everybody else.",
                    hint="make room on that disk, or let the session's owner delete what nobody needs.",
                )

    def snapshot_cost(self, session: Session) -> int:
        """Bytes that a snapshot of home and volumes copies; in the pool and where files share blocks, 0.

        Raises:
            RefitError: another file system is mounted inside, or a subvolume, or there are too many files.
        """
        return self._refuse_what_cant_be_copied(session)

    def prices(self) -> Mapping[str, str]:
        """Nothing: here a snapshot is taken in no time, or while the session runs."""
        return {}

    def own_size(self, session: Session, id: str) -> int | None:
        """Bytes that nothing else has than this snapshot: so many come back if it goes; none: nobody knows.

        In the pool alone they differ from what was copied; they are looked up for `SIZE_SECONDS` at most.
        """
        folders = [folder for folder in copying.all_of(self.snapshot(session.name, id)) if folder in self.pool]
        if not folders:
            return None
        usage: copying.Call = ["btrfs", "filesystem", "du", "--summarize", "--raw", *folders]
        try:
            output = enclosed.run(usage, reads=folders, limit=SIZE_SECONDS, yields=True).stdout
            return sum(int(line.split()[1]) for line in output.splitlines()[1:])
        except (ProgramFailed, CommandTimeout, ValueError, IndexError):
            return None

    def touched(self, session: Session, id: str) -> tuple[str, ...] | None:
        """The paths that aren't as in the snapshot, without how; none: only `differences` can tell.

        In the pool that takes as long as there is to tell, however large the home is.
        """
        snapshot, paths = self.snapshot(session.name, id), list[str]()
        for part in parts(session):
            if not (copy := beside(part, snapshot)).is_dir():
                continue  # the session got this volume later
            touched = self.pool.touched(folder_of(part.ref), copy) if copy in self.pool else None
            if touched is None:
                return None
            paths += map(part.named, touched)
        return tuple(sorted(paths))

    def _refuse_what_cant_be_copied(self, session: Session) -> int:
        """Bytes that copies of home and volumes take on the disk; in the pool and where files share blocks, 0."""
        for part in parts(session):
            copying.refuse_mounts(folder_of(part.ref))
            if folder_of(part.ref) in self.pool:
                self.pool.refuse_nested(folder_of(part.ref))
        outside = [folder_of(part.ref) for part in parts(session) if folder_of(part.ref) not in self.pool]
        size = copying.extent_of(outside, self._most_files).size
        return size if size and not self._shares_blocks() else 0

    def spare(self, session: Session, most: int) -> Session:
        """Copy home and volumes for a rehearsal; the session may run. Parts in the pool are copied there.

        Args:
            session: the session with the home and volumes; by its name `forget_spare` removes the copies.
            most: bytes that all copies may take, if they can't share them with what is there.

        Returns:
            The session as it can be rehearsed: with the copies, and read-only what it shares.

        Raises:
            NoRoom: they would take more, or more than there is.
            RefitError: another file system is mounted inside, or a subvolume.
        """
        size, free = self._refuse_what_cant_be_copied(session), shutil.disk_usage(self._snapshots).free
        if size and (size > most or lacking(size, free)):
            raise NoRoom(
                f"the home takes {megabytes(size)}; a copy may take {megabytes(most)}, and {megabytes(free)} are free"
            )
        pool, plain = self.pool.rehearsals / session.name, self._spares / check_name(session.name)
        copies = {
            part: beside(part, pool if folder_of(part.ref) in self.pool else plain / "home") for part in parts(session)
        }
        command.run(["install", "-d", "-m", "0700", plain], root=True)
        with reserved(self._notes, self._snapshots, size):
            self._take(((folder_of(part.ref), copy) for part, copy in copies.items()), self._duplicate, writable=True)
        own = {part.volume: ref_of(copy) for part, copy in copies.items()}
        volumes = tuple(
            replace(volume, ref=own[volume.name]) if is_own(volume) else replace(volume, read_only=True)
            for volume in session.volumes
        )
        return replace(session, home=own[""], volumes=volumes)

    def forget_spare(self, name: str) -> None:
        """Remove the copies of home and volumes that were made for a rehearsal."""
        copying.remove(self._spares / check_name(name))
        if self.pool.exists:
            for copy in copying.all_of(self.pool.rehearsals / check_name(name)):
                self.pool.delete(copy)

    def prepare(self, session: Session, id: str, others: Collection[str] = ()) -> None:
        """Nothing: programs of this machine start at once."""

    def release(self, session: str) -> None:
        """Delete what was in the place of homes that went back; nobody waits for that."""
        self.pool.sweep()

    def copy(self, session: Session, id: str) -> None:
        """Copy home and volumes of a running session; `delta` brings in later changes.

        Raises:
            NoRoom: there is no room for them on the disk; where other copies take it, this one waits for them.
        """
        if size := self._refuse_what_cant_be_copied(session):
            files = copying.all_of(self.snapshot(session.name, id))  # by an attempt that was interrupted
            size = max(0, size - copying.extent_of(files, self._most_files).size)
        with reserved(self._notes, self._snapshots, size):
            try:
                self._take_all(session, id, self._duplicate)
            except RefitError:
                self.forget(session.name, id)  # on a disk that may be full, half a copy is in everybody's way
                raise

    def delta(self, session: Session, id: str) -> None:
        """Make the snapshot equal to home and volumes of a session that is stopped; in the pool, all or none."""
        self._take_all(session, id, self._mirror)

    def differences(
        self, session: Session, id: str, except_paths: Collection[str] = (), *, at_a_glance: bool = False
    ) -> tuple[str, ...]:
        """The differences between the snapshot and home and volumes, by content, owner, mode and attributes; empty:
        none.

        Args:
            session: the session with the home and volumes.
            id: the snapshot.
            except_paths: paths that may differ in the home, as patterns of rsync, from the top of it.
            at_a_glance: somebody waits: files of the same size and time (ns) count as the same.

        Raises:
            NobodyKnows: that takes too long.
        """
        snapshot, differences = self.snapshot(session.name, id), list[str]()
        for part in parts(session):
            excepted = () if part.volume else except_paths
            differences += map(part.named, self._differences(part, beside(part, snapshot), excepted, at_a_glance))
        return tuple(differences)

    def _differences(
        self, part: Part, snapshot: Path, except_paths: Collection[str], at_a_glance: bool
    ) -> tuple[str, ...]:
        touched = self.pool.touched(folder_of(part.ref), snapshot) if folder_of(part.ref) in self.pool else None
        if touched is not None and only_within(touched, except_paths):
            return ()  # in milliseconds; else every byte is compared, to say what it is
        excluded = [f"/{pattern.lstrip('/')}" for pattern in except_paths]
        seen = copying.differing(
            folder_of(part.ref), snapshot, self._compare_seconds, excluded, at_a_glance=at_a_glance
        )
        return copying.described(seen, except_paths)

    def restore(self, session: Session, id: str) -> None:
        """Make home and volumes of a session that is stopped equal to their snapshot.

        In the pool that is all of them or none; elsewhere, who is killed here does the rest by doing it again.

        Raises:
            RefitError: the snapshot of one of them isn't there; all are as they were.
        """
        snapshot = self.snapshot(session.name, id)
        ways = [(beside(part, snapshot), folder_of(part.ref)) for part in parts(session)]
        if missing := [source for source, _ in ways if not source.is_dir()]:
            raise RefitError(
                f"There is no snapshot {id!r} of the session {session.name!r}.",
                why=f"{missing[0]} isn't there.",
                hint=f"`refit session snapshots {session.name}` lists them.",
            )
        if pooled := [way for way in ways if way[1] in self.pool]:
            self.pool.restore(pooled)
        for source, folder in ways:
            if folder not in self.pool:
                copying.give_back(source, folder, self._copy_seconds)

    def bring_files(self, session: Session, id: str, paths: Iterable[str], *, to: str = "", suffix: str = "") -> None:
        """Let single files and folders be what they are in a snapshot, with the arguments of `Homes.bring_files`.

        Raises:
            RefitError: one isn't in the snapshot, or `to` can't be made: nothing was brought.
        """
        snapshot, chosen = self.snapshot(session.name, id), files_back.chosen(session, paths)
        for path in chosen:
            files_back.look(beside(path.part, snapshot), path.paths)
        new_folder = self._beside(session, to) if to else None
        for path in chosen:
            source, target = beside(path.part, snapshot), new_folder or folder_of(path.part.ref)
            files_back.bring(source, target, path.paths, self._copy_seconds, suffix=suffix)

    def _beside(self, session: Session, to: str) -> Path:
        (path,) = files_back.chosen(session, [to])
        if path.part.volume:
            raise RefitError(f"{to!r} isn't in the home.", hint="choose a folder in the home.")
        return files_back.make_beside(folder_of(session.home), path.paths[0], session.uid, self._copy_seconds)

    def forget(self, session: str, id: str) -> None:
        """Remove one snapshot, of the home and of the volumes; its note goes first."""
        snapshot_notes.remove(self._snapshots_of(session), session, id)
        for doomed in copying.all_of(self.snapshot(session, id)):
            if doomed in self.pool:
                self.pool.delete(doomed)
            else:
                copying.remove(doomed)

    def _duplicate(self, home: Path, target: Path) -> None:
        copying.duplicate(home, target, self._copy_seconds)

    def _mirror(self, home: Path, target: Path) -> None:
        copying.mirror(home, target, self._copy_seconds)

    def _take_all(self, session: Session, id: str, by: Callable[[Path, Path], object]) -> None:
        snapshot = self._ready(session.name, id)
        self._take(((folder_of(part.ref), beside(part, snapshot)) for part in parts(session)), by)

    def _take(
        self, pairs: Iterable[tuple[Path, Path]], by: Callable[[Path, Path], object], *, writable: bool = False
    ) -> None:
        """Let each second of a pair be what the first is; `by` copies what isn't in the pool."""
        folders = list(pairs)
        if pooled := [pair for pair in folders if pair[0] in self.pool]:
            self.pool.snapshot(pooled, writable=writable)
        for source, target in folders:
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
