"""Homes and volumes in a simulated world, without their snapshots."""

from __future__ import annotations

from pathlib import Path

from flows.core.errors import RefitError
from flows.sessions.homes.folders import folder_of, ref_of
from flows.sessions.homes.volumes import Wanted, two_volumes
from flows.sessions.model import HomeRef, Session, Volume, check_name
from tests.support.simulated.world import World


def draft_of(home: HomeRef) -> str:
    folder = folder_of(home)
    return str(folder.with_name(f".{folder.name}.clone"))


class SimulatedVolumes:
    """The verbs of `engine.Homes` by which homes and volumes are made and removed."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self._folder = world, folder

    def home_of(self, name: str) -> HomeRef:
        return HomeRef(str(self._folder / check_name(name)))

    def make(self, name: str, uid: int) -> HomeRef:
        return self._make(self.home_of(name), uid)

    def _make(self, home: HomeRef, uid: int) -> HomeRef:
        if home not in self._world.homes and draft_of(home) in self._world.homes:
            raise RefitError(f"The copy that {home!r} was to begin with is incomplete.")
        if (owner := self._world.uids.setdefault(home, uid)) != uid:
            raise RefitError(f"{home} belongs to uid {owner}, and the session's uid is {uid}.")
        for contents in (self._world.homes, self._world.owed):
            contents.setdefault(home, {})
        return home

    def mounted(self, session: str, mounts: Wanted) -> Volume:
        own = HomeRef(str(self._folder / ".volumes" / session / check_name(mounts.name)))
        shared = self.shared().get(mounts.name)
        if shared and own in self._world.homes:
            raise two_volumes(session, mounts.name)
        return Volume(mounts.name, mounts.path, shared or own, mounts.read_only, shared=bool(shared))

    def volumes(self, session: str) -> dict[str, HomeRef]:
        return {Path(volume).name: volume for volume in self._below(".volumes", check_name(session))}

    def shared(self) -> dict[str, HomeRef]:
        return {Path(volume).name: volume for volume in self._below(".shared")}

    def make_shared(self, name: str) -> HomeRef:
        if check_name(name) in self.shared():
            raise RefitError(f"There is a volume {name!r} already.")
        return self._make(HomeRef(str(self._folder / ".shared" / name)), 0)

    def make_volumes(self, session: Session) -> None:
        for volume in session.volumes:
            if not volume.shared:
                self._make(volume.ref, session.uid)
            elif volume.ref not in self._world.homes:
                raise RefitError(f"The volume {volume.name!r} of the session {session.name!r} is gone.")

    def remove_volume(self, volume: HomeRef) -> None:
        for one in (self._world.uids, self._world.homes, self._world.owed):
            one.pop(volume, None)

    def _below(self, kind: str, session: str = "") -> list[HomeRef]:
        paths = map(Path, self._world.homes)
        return [ref_of(path) for path in paths if path.parent == self._folder / kind / session]
