"""Homes and volumes, which persist of a session, and their snapshots: of all that is its own, or of none.

Everything runs as root, because a home is its session's alone (0700, a uid of its own), and what touches anything in
one is `enclosed`. Links in a home are copied as links and never followed: their targets are none of ours.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flows.core.errors import RefitError
from flows.core.formatting import megabytes
from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.homes import cloning, copying, person_home_limits, snapshot_notes
from flows.sessions.homes.folders import folder_of, ref_of
from flows.sessions.homes.group_access import open_to_group
from flows.sessions.homes.home_snapshots import HomeSnapshots
from flows.sessions.homes.space_reservation import NoRoom, lacking, reserved
from flows.sessions.homes.volumes import DiskUse, Wanted, parts, two_volumes
from flows.sessions.model import HomeRef, Session, Volume, check_name


class LocalHomes(HomeSnapshots):
    """Implements `engine.Homes` on this machine: in the pool, if there is one, else in folders."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._limits_of = settings
        self._volumes, self._shared = settings.folder("volumes"), settings.folder("shared")

    def volume(self, session: str, name: str) -> Path:
        """The folder of a session's own volume, there or not: beside the session's home."""
        plain = self._volumes / check_name(session) / check_name(name)
        beside = self.path(session) in self.pool and not plain.exists()
        return self.pool.volumes / session / name if beside else plain

    def volumes(self, session: str) -> dict[str, HomeRef]:
        """The volumes of a session that are there, also of one that is gone: name → volume."""
        folders = [self._volumes / check_name(session)]
        folders += [self.pool.volumes / session] if self.pool.exists else []
        volumes = [volume for folder in folders if folder.is_dir() for volume in folder.iterdir()]
        return {volume.name: ref_of(volume) for volume in sorted(volumes) if not volume.name.startswith(".")}

    def shared(self) -> dict[str, HomeRef]:
        """The volumes that sessions share: name → volume."""
        return {folder.name: ref_of(folder) for folder in sorted(self._shared.iterdir())}

    def mounted(self, session: str, mounts: Wanted) -> Volume:
        """A volume that a session is to have: the shared one of that name, if there is one, else its own.

        Raises:
            RefitError: there are both.
        """
        shared, own = self.shared().get(mounts.name), self.volume(session, mounts.name)
        if shared and own.exists():
            raise two_volumes(session, mounts.name)
        return Volume(mounts.name, mounts.path, shared or ref_of(own), mounts.read_only, shared=bool(shared))

    def owners(self) -> dict[str, int]:
        """Home → the uid that owns it, of all that are there, whether or not anybody remembers them."""
        folders = [*([self.pool.homes] if self.pool.exists else []), self._homes]
        homes = (home for folder in folders for home in folder.iterdir() if not home.name.startswith("."))
        return {home.name: home.lstat().st_uid for home in homes}

    def drafts(self) -> tuple[str, ...]:
        """The names of homes that aren't there, but for a copy that a killed process may have left."""
        folders = [*([self.pool.homes] if self.pool.exists else []), self._homes]
        names = {name for folder in folders for name in cloning.drafts_in(folder)}
        return tuple(sorted(name for name in names if not self.path(name).exists()))

    def make(self, name: str, uid: int) -> HomeRef:
        """The home of a session, made if need be: 0700, `uid`, group 0.

        Raises:
            RefitError: there is one of that name that belongs to another uid.
        """
        return ref_of(self._make(self.path(name), uid))

    def make_volumes(self, session: Session) -> None:
        """Make the volumes of a session that it owns, if need be.

        Raises:
            RefitError: one belongs to another uid, or one that it shares is gone.
        """
        for volume in session.volumes:
            if not volume.shared:
                self._make(folder_of(volume.ref), session.uid)
            elif not folder_of(volume.ref).is_dir():
                raise RefitError(
                    f"The volume {volume.name!r} of the session {session.name!r} is gone.",
                    why=f"Sessions shared it, and {volume.ref} isn't there.",
                    hint=f"bring it back, or make an empty one: `refit volume create {volume.name} --shared`.",
                )

    def make_shared(self, name: str) -> HomeRef:
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
        return ref_of(folder)

    def disk_use(self, session: Session) -> tuple[DiskUse, ...]:
        """The disk that home and own volumes of a session take: of those in the pool, if it has limits."""
        inside = [part for part in parts(session) if folder_of(part.ref) in self.pool]
        uses = [(part.volume, use) for part in inside if (use := self.pool.use(folder_of(part.ref)))]
        return tuple(DiskUse(volume, used, most or None) for volume, (used, most) in uses)

    def disk_limit(self, own: int | None) -> int | None:
        """Bytes that each home of a person may take whose own limit is that; none: nothing bounds it, as in folders."""
        if not (self.pool.ready() and self.pool.bounds_homes):
            return None
        return (self.pool.general_limit if own is None else own) or None

    def remove_volume(self, volume: HomeRef) -> None:
        """Remove one volume for good; snapshots of it stay with those of the home."""
        folder = folder_of(volume)
        if folder in self.pool:
            self.pool.delete(folder)
        else:
            copying.remove(folder)

    def _make(self, folder: Path, uid: int) -> Path:
        cloning.require_none(folder)
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

    def draft_clone(self, source: Session, id: str, new: Session) -> None:
        """Copy a snapshot of a session beside the places of home and volumes of a new one, which has none yet.

        Secrets that either one's profile names are left out.

        Args:
            source: the session of the snapshot.
            id: the snapshot.
            new: the new session, whose user may be another one in the end.

        Raises:
            RefitError: there is no room, or it takes too long; the rest of it, `remove` removes.
        """
        home = folder_of(new.home)
        froms = cloning.sources(parts(source), self.snapshot(source.name, id))
        to = {part.volume: folder_of(part.ref) for part in parts(new)}
        size = cloning.size_of(froms.values(), self._most_files, self.pool, home)
        with reserved(self._notes, home.parent, size):
            for part, folder in froms.items():
                cloning.make_draft(self.pool, folder, to[part.volume], self._copy_seconds)
        secrets = {*source.access.secrets, *new.access.secrets}
        cloning.drop_own(cloning.draft_of(home), secrets, self._copy_seconds)

    def finish_clone(self, new: Session, old: int) -> None:
        """Give the copies to the new session's user, in the place of the user `old`, and put them in their places."""
        for part in reversed(parts(new)):  # the home last: where it is, all is
            cloning.give(self.pool, folder_of(part.ref), old, new.uid, self._copy_seconds)

    def remove(self, name: str) -> None:
        """Remove a home, its volumes and all snapshots for good.

        A copy that was to become the home goes last: `drafts` names it until all else is gone.
        """
        doomed = [self._homes / check_name(name), self._volumes / name, self._snapshots / name]
        doomed.append(snapshot_notes.folder_of(self._snapshots, name))
        if self.pool.exists:
            folders = [self.pool.snapshots / name, self.pool.volumes / name]
            inside = (subvolume for folder in folders if folder.exists() for subvolume in folder.iterdir())
            for subvolume in (*inside, self.pool.homes / name):
                self.pool.delete(subvolume)
            doomed += [*folders, snapshot_notes.folder_of(self.pool.snapshots, name)]
            self.pool.sweep()
        for folder in doomed:
            copying.remove(folder)
        person_home_limits.choose(self._limits_of, name, None)
        cloning.forget_draft(self.pool, self.path(name))

    def copy_to_pool(self, session: Session) -> Session:
        """Copy home and volumes of a session that is stopped into the pool, and compare every byte.

        Returns:
            The session with its home and volumes there.

        Raises:
            RefitError: the pool has no room for them, or a copy is not the same.
        """
        volumes = {name: folder_of(ref) for name, ref in self.volumes(session.name).items()}
        moving = {folder_of(session.home): self.pool.homes / session.name}
        moving |= {folder: self.pool.volumes / session.name / name for name, folder in volumes.items()}
        for folder in moving:
            copying.refuse_mounts(folder)
        size, free = copying.extent_of(moving, self._most_files).size, self.pool.room().free
        if missing := lacking(size, free):
            raise NoRoom(
                f"The pool has no room for the home of {session.name!r}: {megabytes(missing)} are missing.",
                why=f"With its volumes it takes {megabytes(size)}, "
                f"and {megabytes(free)} are free in {self.pool.folder}.",
            )
        for source, target in moving.items():
            self._copy_to_pool(source, target, session.uid)
        new = {ref_of(source): ref_of(target) for source, target in moving.items()}
        there = tuple(replace(volume, ref=new.get(volume.ref, volume.ref)) for volume in session.volumes)
        return replace(session, home=new[session.home], volumes=there)

    def _copy_to_pool(self, source: Path, target: Path, uid: int) -> None:
        with self.pool.making(target, uid) as draft:
            copying.mirror(source, draft, self._copy_seconds)
            if differing := copying.differing(source, draft, self._compare_seconds):
                raise RefitError(
                    f"The copy of {source} in the pool is not the same: {copying.described(differing)[0]}.",
                    why="Something writes there, though its session is stopped.",
                    hint="end what writes there, and move the home again.",
                )

    def forget_folder(self, name: str) -> None:
        """Remove the folders of home and volumes that were copied to the pool; each is gone as a whole, or there."""
        for folders in (self._volumes, self._homes):
            doomed = folders / f".{check_name(name)}.old"
            if (folders / name).exists():
                command.run(["mv", "-T", "--", folders / name, doomed], root=True)
            copying.remove(doomed)
