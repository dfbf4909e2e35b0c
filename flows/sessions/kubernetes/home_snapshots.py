"""Snapshots of homes that are claims: taken, compared, brought back, and copied for rehearsals and new sessions."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from http import HTTPStatus

from flows.core.errors import RefitError
from flows.core.formatting import megabytes
from flows.core.settings.cluster import Snapshots
from flows.sessions.homes import files_back
from flows.sessions.homes.space_reservation import NoRoom
from flows.sessions.homes.volumes import is_own, parts
from flows.sessions.kubernetes import rights, snapshot_ways
from flows.sessions.kubernetes.cluster import Cluster, ClusterError
from flows.sessions.kubernetes.home_pods import HomePods, HomeWork, Mount
from flows.sessions.kubernetes.kinds import SNAPSHOTS
from flows.sessions.kubernetes.manifests import KIND, LABEL, SESSION
from flows.sessions.kubernetes.snapshot_ways import (
    CLAIMS,
    PART,
    SNAPSHOT,
    Copies,
    VolumeSnapshots,
    kept,
    labelled,
    live,
    make_claim,
    remove_claim,
)
from flows.sessions.model import HomeRef, Session
from flows.sessions.podman_only import NotOnKubernetes

_SPARE = "spare"
# Label of a copy for a rehearsal: the name by which it is forgotten.
_CALLED = f"{LABEL}{_SPARE}"
# Annotations of the claim of a home: the seconds that its last snapshot took, and its last way back.
TAKEN, RESTORED = f"{LABEL}snapshot-seconds", f"{LABEL}restore-seconds"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_STORAGE, _SNAPSHOT_API = "apis/storage.k8s.io/v1", "apis/snapshot.storage.k8s.io/v1"


class ClusterSnapshots:
    """The verbs of `engine.Homes` that need snapshots, in one namespace of a cluster.

    Attributes:
        keeps: whether any are taken.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is asked of the cluster yet."""
        self._cluster, self._pods = cluster, HomePods(cluster)
        self.keeps = cluster.options.snapshots is not Snapshots.none

    @cached_property
    def way(self) -> Copies | VolumeSnapshots:
        """By VolumeSnapshots where the storage class can and Refit may, else by copies.

        Raises:
            NotOnKubernetes: none are to be taken.
        """
        if not self.keeps:
            raise NotOnKubernetes(
                "Snapshots of homes", "set `kubernetes.snapshots: auto`; docs/kubernetes.md says what they cost."
            )
        if (snapshot_class := self._snapshot_class()) and not rights.lacking(self._cluster, rights.SNAPSHOT):
            return VolumeSnapshots(self._cluster, snapshot_class)
        return Copies(self._cluster, self._pods)

    @property
    def by_storage(self) -> bool:
        """Whether the storage class takes them, which costs the same for homes of all sizes."""
        return isinstance(self.way, VolumeSnapshots)

    def _snapshot_class(self) -> str:
        """The class of snapshots that fits the storage class of homes; empty: there is none, or Refit may not know."""
        try:
            classes = (self._cluster.of_all(_STORAGE, "storageclasses") or {}).get("items") or ()
            there = (self._cluster.of_all(_SNAPSHOT_API, "volumesnapshotclasses") or {}).get("items") or ()
        except ClusterError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                return ""
            raise
        asked = self._cluster.options.storage_class
        drivers = {
            str(each["provisioner"])
            for each in classes
            if (each["metadata"]["name"] == asked if asked else _is_default(each["metadata"]))
        }
        return next((str(each["metadata"]["name"]) for each in there if each["driver"] in drivers), "")

    def prepare(self, session: Session, id: str, others: Iterable[str]) -> None:
        """Let the next verbs about this snapshot, and others that are there, be quick, until `release`."""
        if isinstance(self.way, Copies):
            for other in others:
                self._require(session, other)
            self.way.prepare(session, id, others)

    def release(self, session: str) -> None:
        """End what `prepare` has begun."""
        if self.keeps:
            self._pods.release(session)

    def take(self, session: Session, id: str) -> None:
        """Let the snapshot be what home and volumes are now."""
        with self._measured(session, TAKEN):
            self.way.take(session, id)

    @contextmanager
    def _measured(self, session: Session, key: str) -> Iterator[None]:
        """Let the claim of the home say how many seconds it took."""
        began = time.monotonic()
        yield
        told = {key: f"{time.monotonic() - began:.1f}"}
        self._cluster.patch(CLAIMS, session.home, {"metadata": {"annotations": told}}, "merge")

    def how(self) -> str:
        """How snapshots are taken, in words; empty: none are."""
        if not self.keeps:
            return ""
        return "the storage class takes them" if self.by_storage else "a Pod beside the session copies the home"

    def price(self, annotations: Mapping[str, str]) -> str:
        """The cost of a home's snapshots in words, by the annotations of its claim."""
        if not self.keeps:
            return "no snapshot of the home is taken: a change of it by the new image isn't undone"
        how = self.how()
        taken, back = annotations.get(TAKEN), annotations.get(RESTORED)
        first = f"the last one took {taken} s" if taken else "how long that takes is measured by the first move"
        second = f"; the way back of the home took {back} s" if back else ""
        return f"while the session is away, its home has a snapshot ({how}): {first}{second}"

    def has(self, session: str, id: str) -> bool:
        """Whether there is a snapshot of a session's home."""
        return self.keeps and self.way.has(session, id)

    def forget(self, session: str, id: str) -> None:
        """Remove it."""
        if self.keeps:
            self.way.forget(session, id)

    def forget_all(self, session: str) -> None:
        """Remove all snapshots of a session, and copies for rehearsals, also those of another way."""
        for claim in self._cluster.list(CLAIMS, **{SESSION: session, KIND: snapshot_ways.COPY}):
            remove_claim(self._cluster, claim["metadata"]["name"])
        self._remove_spares(**{SESSION: session})
        if self.keeps and self.by_storage:
            for each in self._cluster.list(SNAPSHOTS, **{SESSION: session}):
                self._cluster.delete(SNAPSHOTS, each["metadata"]["name"])

    def differences(
        self, session: Session, id: str, except_paths: Collection[str] = (), *, at_a_glance: bool = False
    ) -> tuple[str, ...]:
        """The differences between the snapshot and home and volumes, each in words."""
        lines: list[str] = []
        with self._beside(session, id) as (work, sources, targets):
            for part, source, target in zip(parts(session), sources, targets, strict=True):
                excepted = () if part.volume else except_paths
                told = work.call("differences", source.folder, target.folder, "0" if at_a_glance else "1", *excepted)
                lines += map(part.named, told.splitlines())
        return tuple(lines)

    @contextmanager
    def _beside(
        self, session: Session, id: str, *, writes: bool = False
    ) -> Iterator[tuple[HomeWork, tuple[Mount, ...], tuple[Mount, ...]]]:
        """A Pod with home and volumes, and with their snapshots.

        Raises:
            RefitError: there is no whole snapshot of that name.
        """
        self._require(session, id)
        with self.way.view(session, id) as claims:
            mounts, copies = live(session, read_only=not writes), kept(session, claims)
            with self._pods.mounted(session, [*mounts, *copies]) as work:
                yield work, mounts, copies

    def _require(self, session: Session, id: str) -> None:
        if not self.way.has(session.name, id, [part.volume for part in parts(session)]):
            raise RefitError(
                f"There is no snapshot {id!r} of the session {session.name!r}.",
                why="It isn't there, or has not all of its volumes.",
                hint=f"`refit session snapshots {session.name}` lists them.",
            )

    def restore(self, session: Session, id: str) -> None:
        """Make home and volumes of a session that is stopped equal to their snapshot; doing it again does the rest."""
        with (
            self._measured(session, RESTORED),
            self._beside(session, id, writes=True) as (work, mounts, copies),
        ):
            for mount, copy in zip(mounts, copies, strict=True):
                work.call("mirror", copy.folder, mount.folder)

    def bring_files(self, session: Session, id: str, paths: Iterable[str], *, to: str = "", suffix: str = "") -> None:
        """Let single files and folders be what they are in a snapshot, while the session runs or not."""
        chosen = files_back.chosen(session, paths)
        beside = files_back.chosen(session, [to])[0] if to else None
        if beside and beside.part.volume:
            raise RefitError(f"{to!r} isn't in the home.", hint="choose a folder in the home.")
        with self._beside(session, id, writes=True) as (work, mounts, copies):
            places: Mapping[str, tuple[str, str]] = {
                part.volume: (copy.folder, mount.folder)
                for part, mount, copy in zip(parts(session), mounts, copies, strict=True)
            }
            for one in chosen:
                work.call("look", places[one.part.volume][0], *one.paths)
            if beside:
                work.call("beside", places[""][1], beside.paths[0])
            for one in chosen:
                source, target = places[one.part.volume]
                where = f"{places[''][1]}/{beside.paths[0]}" if beside else target
                work.call("bring", source, where, suffix, *one.paths)

    def size(self, session: Session) -> int:
        """Bytes that home and volumes take."""
        mounts = live(session, read_only=True)
        with self._pods.mounted(session, mounts) as work:
            return _size(work, mounts)

    def spare(self, session: Session, most: int, called: str) -> Session:
        """Copy home and volumes for a rehearsal; the session may run.

        Args:
            session: the session with the home and volumes.
            most: bytes that copies may take.
            called: the name by which `forget_spare` removes them.

        Raises:
            NoRoom: they would take more.
        """
        self.forget_spare(called)
        own = {part.volume: f"refit-{_SPARE}-{called}-{n}" for n, part in enumerate(parts(session))}
        try:
            self._spare(session, own, most, called)
        except NoRoom:
            self.forget_spare(called)
            raise
        volumes = tuple(
            replace(volume, ref=HomeRef(own[volume.name])) if is_own(volume) else replace(volume, read_only=True)
            for volume in session.volumes
        )
        return replace(session, home=HomeRef(own[""]), volumes=volumes)

    def _spare(self, session: Session, own: Mapping[str, str], most: int, called: str) -> None:
        if isinstance(self.way, VolumeSnapshots):
            self.way.take(session, id := _snapshot_of_spare(called))
            newest = self.way.newest(session.name, id)
            for volume, claim in own.items():
                self.way.derive(claim, session, _SPARE, newest[volume], {PART: volume, _CALLED: called})
            return
        for volume, claim in own.items():
            labels = {PART: volume, _CALLED: called}
            make_claim(self._cluster, snapshot_ways.claim_of(claim, session, _SPARE, labels, self._cluster))
        mounts, copies = live(session, read_only=True), kept(session, own, read_only=False)
        with self._pods.mounted(session, [*mounts, *copies]) as work:
            if (size := _size(work, mounts)) > most:
                raise NoRoom(f"the home takes {megabytes(size)}; a copy may take {megabytes(most)}")
            for mount, copy in zip(mounts, copies, strict=True):
                work.call("mirror", mount.folder, copy.folder)

    def forget_spare(self, called: str) -> bool:
        """Remove the copies that were made for a rehearsal; returns whether there were any.

        Those that no label names go too: a Refit of before that was killed has left them.
        """
        self._remove_unnamed_spares(called)
        there = self._remove_spares(**{_CALLED: called})
        if self.keeps and self.by_storage:
            for each in self._cluster.list(SNAPSHOTS, **{SNAPSHOT: labelled(_snapshot_of_spare(called))}):
                self._cluster.delete(SNAPSHOTS, each["metadata"]["name"])
                there = True
        return there

    def _remove_unnamed_spares(self, called: str) -> None:
        """Remove copies that have no label with a name, and wait only for those whose names are wanted now.

        A Pod of a killed rehearsal may have one until Kubernetes ends that Pod.
        """
        spares = [each["metadata"] for each in self._cluster.list(CLAIMS, **{KIND: _SPARE})]
        names = [each["name"] for each in spares if _CALLED not in each["labels"]]
        if names:
            self._pods.end_those_with(names)
        for name in names:
            if name.startswith(f"refit-{_SPARE}-{called}-"):
                remove_claim(self._cluster, name)
            else:
                self._cluster.delete(CLAIMS, name)

    def _remove_spares(self, **labels: str) -> bool:
        """Remove copies with these labels, and first the Pod of a killed Refit that still copies to them."""
        claims = [each["metadata"]["name"] for each in self._cluster.list(CLAIMS, **labels, **{KIND: _SPARE})]
        if claims:
            self._pods.end_those_with(claims)
        for claim in claims:
            remove_claim(self._cluster, claim)
        return bool(claims)


def _snapshot_of_spare(called: str) -> str:
    """The id of the VolumeSnapshots that a copy for a rehearsal begins with."""
    return f"{_SPARE} {called}"


def _size(work: HomeWork, mounts: Iterable[Mount]) -> int:
    """Bytes that these folders take."""
    return sum(int(work.call("size", mount.folder).split()[0]) for mount in mounts)


def _is_default(metadata: Mapping[str, object]) -> bool:
    annotations = metadata.get("annotations")
    return isinstance(annotations, Mapping) and annotations.get(_DEFAULT_CLASS) == "true"
