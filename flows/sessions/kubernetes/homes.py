"""Homes and volumes as claims of a cluster: what `engine.Homes` asks for, as far as claims alone can do it.

A path of a home is the name of its claim here, and nothing on this machine. There are no snapshots yet, so that all
that needs one refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from flows.core.errors import RefitError
from flows.sessions.homes.volumes import DiskUse, Wanted
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.manifests import KIND, SESSION, UID, VOLUME
from flows.sessions.model import Session, Volume, check_name
from flows.sessions.podman_only import NotOnKubernetes

_CLAIMS = "persistentvolumeclaims"


class ClusterHomes:
    """Implements `engine.Homes` in one namespace of a cluster, without snapshots and copies."""

    keeps_snapshots = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def path(self, name: str) -> Path:
        """The name of the claim of a session's home, there or not.

        Raises:
            IllegalName: no session can be called so.
            RefitError: no object of Kubernetes can.
        """
        if check_name(name).endswith("-"):
            raise RefitError(
                f"{name!r} can't be the name of a session on Kubernetes.",
                why="It becomes the name of a host, which can't end with a hyphen.",
                hint=f"take {name.rstrip('-')!r}, for instance.",
            )
        return Path(manifests.claim(name))

    def owners(self) -> Mapping[str, int]:
        """Home → the uid that owns it, of all that are there, whether or not anybody remembers them."""
        claims = self._cluster.list(_CLAIMS, **{KIND: "home"})
        homes = (claim["metadata"] for claim in claims if VOLUME not in claim["metadata"]["labels"])
        return {home["labels"][SESSION]: _uid(home) for home in homes if SESSION in home["labels"]}

    def make(self, name: str, uid: int) -> Path:
        """The claim of a session's home, made if need be.

        Raises:
            RefitError: there is one of that name that belongs to another uid.
        """
        home = self.path(name)
        self._make(home.name, uid, {SESSION: name})
        return home

    def mounted(self, session: str, mounts: Wanted) -> Volume:
        """A volume that a session is to have: its own, for none is shared here."""
        folder = Path(manifests.volume_claim(session, check_name(mounts.name)))
        return Volume(mounts.name, mounts.path, folder, mounts.read_only)

    def make_volumes(self, session: Session) -> None:
        """Make the claims of a session's volumes, if need be.

        Raises:
            RefitError: one belongs to another uid.
            NotOnKubernetes: it shares one.
        """
        for volume in session.volumes:
            if volume.shared:
                raise NotOnKubernetes(f"The shared volume {volume.name!r}")
            self._make(volume.folder.name, session.uid, {SESSION: session.name, VOLUME: volume.name})

    def _make(self, claim: str, uid: int, labels: Mapping[str, str]) -> None:
        self._cluster.ensure(_CLAIMS, manifests.home_claim(claim, self._cluster.options, labels, uid))
        there = self._cluster.find(_CLAIMS, claim)
        if there and (owner := _uid(there["metadata"])) != uid:
            raise RefitError(
                f"The claim {claim} belongs to uid {owner}, and the session's uid is {uid}.",
                why="It is of a session that Refit has no record of.",
                hint="give the session another name, or delete the claim if nobody needs what is in it.",
            )

    def disk_use(self, session: Session) -> tuple[DiskUse, ...]:
        """Nothing: only the node that has a claim mounted knows how full it is."""
        return ()

    def disk_limit(self, own: int | None) -> int | None:
        """None: the cluster bounds claims by itself."""
        return None

    def remove_volume(self, folder: Path) -> None:
        """Remove the claim of one volume for good."""
        self._cluster.delete(_CLAIMS, folder.name)

    def remove(self, name: str) -> None:
        """Remove the claims of a home and its volumes for good."""
        for claim in self._cluster.list(_CLAIMS, **{KIND: "home", SESSION: check_name(name)}):
            self._cluster.delete(_CLAIMS, claim["metadata"]["name"])

    def has_snapshot(self, session: str, id: str) -> bool:
        """Whether there is a snapshot `id` of a session's home: none is ever taken here."""
        return False

    def forget_spare(self, name: str) -> None:
        """Nothing: no copy for a rehearsal is ever made here."""

    def forget(self, session: str, id: str) -> None:
        """Nothing: there is no snapshot."""

    def draft_clone(self, source: Session, id: str, new: Session) -> None:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Clones of sessions")

    def finish_clone(self, new: Session, old: int) -> None:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Clones of sessions")

    def check_room(self, session: Session) -> None:
        """Refuse, as for all that a snapshot is needed for.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def snapshot_cost(self, session: Session) -> int:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def own_size(self, session: Session, id: str) -> int | None:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def touched(self, session: Session, id: str) -> tuple[str, ...] | None:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def spare(self, session: Session, folder: Path, most: int) -> Session:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Rehearsals")

    def copy(self, session: Session, id: str) -> Path:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def delta(self, session: Session, id: str) -> Path:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def snapshot(self, session: str, id: str) -> Path:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def differences(
        self, session: Session, id: str, except_paths: Collection[str] = (), *, at_a_glance: bool = False
    ) -> tuple[str, ...]:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def restore(self, session: Session, id: str) -> None:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")

    def bring_files(self, session: Session, id: str, paths: Iterable[str], *, to: str = "", suffix: str = "") -> None:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        _refuse("Snapshots of homes")


def _refuse(thing: str) -> NoReturn:
    raise NotOnKubernetes(thing)


def _uid(metadata: Mapping[str, object]) -> int:
    annotations = metadata.get("annotations")
    told = annotations.get(UID, "") if isinstance(annotations, Mapping) else ""
    return int(told) if str(told).isdecimal() else -1
