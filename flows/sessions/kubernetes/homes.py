"""Homes and volumes as claims of a cluster: implements `engine.Homes`. Each is known by the name of its claim."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath

from flows.core.errors import RefitError
from flows.sessions.homes.volumes import DiskUse, Wanted, two_volumes
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.home_snapshots import ClusterSnapshots
from flows.sessions.kubernetes.manifests import KIND, SESSION, UID, VOLUME
from flows.sessions.kubernetes.shared_volumes import Maker, SharedVolumes, is_shared
from flows.sessions.kubernetes.snapshot_ways import VolumeSnapshots, remove_claim
from flows.sessions.kubernetes.volume_mounts import claim_of
from flows.sessions.model import HOME, HomeRef, Session, Volume, check_name
from flows.sessions.podman_only import NotOnKubernetes

_CLAIMS = "persistentvolumeclaims"


class ClusterHomes:
    """Implements `engine.Homes` in one namespace of a cluster."""

    def __init__(self, cluster: Cluster, maker: Maker = lambda _: None) -> None:
        """Nothing is asked of the cluster yet; `maker` tells by whom the image of a session was made."""
        self._cluster, self._snapshots = cluster, ClusterSnapshots(cluster)
        self._shared = SharedVolumes(cluster, maker)
        self.keeps_snapshots = self._snapshots.keeps

    def home_of(self, name: str) -> HomeRef:
        """The name of the claim of a session's home, there or not.

        Raises:
            IllegalName: no session can be called so.
            RefitError: no object of Kubernetes can.
        """
        return HomeRef(manifests.claim(_check_label(name, "session")))

    def owners(self) -> Mapping[str, int]:
        """Home → the uid that owns it, of all that are there, whether or not anybody remembers them."""
        claims = self._cluster.list(_CLAIMS, **{KIND: "home"})
        there = (claim["metadata"] for claim in claims if "deletionTimestamp" not in claim["metadata"])
        homes = (claim for claim in there if VOLUME not in claim["labels"])
        return {home["labels"][SESSION]: _uid(home) for home in homes if SESSION in home["labels"]}

    def make(self, name: str, uid: int) -> HomeRef:
        """The claim of a session's home, made if need be.

        Raises:
            RefitError: there is one of that name that belongs to another uid.
        """
        home = self.home_of(name)
        self._make(home, uid, {SESSION: name})
        return home

    def volumes(self, session: str) -> Mapping[str, HomeRef]:
        """The volumes of a session that are there, also of one that is gone: name → volume."""
        claims = self._cluster.list(_CLAIMS, **{KIND: "home", SESSION: check_name(session), VOLUME: ""})
        there = [claim["metadata"] for claim in claims if "deletionTimestamp" not in claim["metadata"]]
        return {each["labels"][VOLUME]: HomeRef(each["name"]) for each in there}

    def shared(self) -> Mapping[str, HomeRef]:
        """The volumes that sessions share: name → volume."""
        return self._shared.all()

    def make_shared(self, name: str) -> HomeRef:
        """Make a volume for sessions to share: all of them read and write what any of them makes there.

        Raises:
            RefitError: there is one of that name, or the storage class has none that many nodes can have.
        """
        return self._shared.make(_check_label(name, "volume"))

    def mounted(self, session: str, mounts: Wanted) -> Volume:
        """A volume that a session is to have: the shared one of that name, if there is one, else its own.

        Raises:
            RefitError: there are both, or many can't have the shared one.
            NotOnKubernetes: it is to be in the home.
        """
        if PurePosixPath(mounts.path).is_relative_to(HOME):
            raise NotOnKubernetes(f"A volume in the home ({mounts.path})", "choose a path beside it, e.g. /data.")
        claim = HomeRef(manifests.volume_claim(session, _check_label(mounts.name, "volume")))
        if (shared := self._shared.mounted(mounts)) is None:
            return Volume(mounts.name, mounts.path, claim, mounts.read_only)
        if self._cluster.find(_CLAIMS, claim):
            raise two_volumes(session, mounts.name)
        return shared

    def make_volumes(self, session: Session) -> None:
        """Make the claims of a session's volumes, if need be.

        Raises:
            RefitError: one belongs to another uid, or one that it shares is gone or can't be shared.
        """
        for volume in session.volumes:
            if volume.shared:
                self._shared.require(session, volume)
            else:
                self._make(volume.ref, session.uid, {SESSION: session.name, VOLUME: volume.name})

    def _make(self, claim: str, uid: int, labels: Mapping[str, str]) -> None:
        if "deletionTimestamp" in (self._cluster.find(_CLAIMS, claim) or {}).get("metadata", {}):
            remove_claim(self._cluster, claim)
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

    def remove_volume(self, volume: HomeRef) -> None:
        """Remove the claim of one volume for good.

        Raises:
            RefitError: it is shared, and an administrator has made it.
        """
        if is_shared(self._cluster.find(_CLAIMS, claim_of(volume))):
            self._shared.remove(volume)
        else:
            remove_claim(self._cluster, volume)

    def remove(self, name: str) -> None:
        """Remove the claims of a home and its volumes for good."""
        self._snapshots.release(check_name(name))
        for claim in self._cluster.list(_CLAIMS, **{KIND: "home", SESSION: name}):
            remove_claim(self._cluster, claim["metadata"]["name"])
        self._snapshots.forget_all(name)

    def has_snapshot(self, session: str, id: str) -> bool:
        """Whether there is a whole snapshot `id` of a session's home."""
        return self._snapshots.has(check_name(session), id)

    def forget_spare(self, name: str) -> None:
        """Remove the copies of a session's home and volumes that were made for a rehearsal."""
        self._snapshots.forget_spare(check_name(name))

    def drafts(self) -> tuple[str, ...]:
        """None: no home is ever copied here."""
        return ()

    def note(self, session: str, id: str, text: str) -> None:
        """Nothing: the object of the cluster that is the snapshot says what it is."""

    def notes(self, session: str) -> tuple[str, ...]:
        """None: the objects of the cluster say what their snapshots are."""
        return ()

    def forget(self, session: str, id: str) -> None:
        """Remove one snapshot, of the home and of the volumes."""
        self._snapshots.forget(check_name(session), id)

    def draft_clone(self, source: Session, id: str, new: Session) -> None:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        raise NotOnKubernetes("Clones of sessions")

    def finish_clone(self, new: Session, old: int) -> None:
        """Refuse.

        Raises:
            NotOnKubernetes: always.
        """
        raise NotOnKubernetes("Clones of sessions")

    def check_room(self, session: Session) -> None:
        """Nothing: the cluster bounds claims by itself, and says so when one is made.

        Raises:
            NotOnKubernetes: the settings want no snapshots.
        """
        self._snapshots.way  # noqa: B018 - it refuses

    def snapshot_cost(self, session: Session) -> int:
        """Bytes that a snapshot of home and volumes copies; 0: the storage class takes them.

        Raises:
            RefitError: the Pod that counts them doesn't run.
        """
        return 0 if isinstance(self._snapshots.way, VolumeSnapshots) else self._snapshots.size(session)

    def prices(self) -> Mapping[str, str]:
        """Session → what its snapshots cost, as measured the last time, or that there are none; in words."""
        claims = self._cluster.list(_CLAIMS, **{KIND: "home"})
        homes = (each["metadata"] for each in claims if VOLUME not in each["metadata"]["labels"])
        return {
            home["labels"][SESSION]: self._snapshots.price(home.get("annotations") or {})
            for home in homes
            if SESSION in home["labels"]
        }

    def own_size(self, session: Session, id: str) -> int | None:
        """None: only the storage knows."""
        return None

    def touched(self, session: Session, id: str) -> tuple[str, ...] | None:
        """None: only `differences` can tell."""
        return None

    def spare(self, session: Session, most: int) -> Session:
        """Copy home and volumes for a rehearsal into claims of their own; the session may run.

        Raises:
            NoRoom: they would take more than `most` bytes.
        """
        return self._snapshots.spare(session, most, session.name)

    def prepare(self, session: Session, id: str, others: Collection[str] = ()) -> None:
        """Let the next verbs about these snapshots be quick, until `release`: by a Pod that is there already."""
        self._snapshots.prepare(session, id, others)

    def release(self, session: str) -> None:
        """End that Pod."""
        self._snapshots.release(check_name(session))

    def copy(self, session: Session, id: str) -> None:
        """Begin the snapshot `id` while the session runs; `delta` brings in later changes."""
        self.delta(session, id)

    def delta(self, session: Session, id: str) -> None:
        """Make the snapshot equal to home and volumes of a session that is stopped, copied before or not."""
        self._snapshots.take(session, id)

    def snapshot_place(self, session: str, id: str) -> str:
        """A name for the snapshot `id` of a session's home, there or not: its files are in no folder here."""
        return f"{manifests.claim(check_name(session))}@{id}"

    def differences(
        self, session: Session, id: str, except_paths: Collection[str] = (), *, at_a_glance: bool = False
    ) -> tuple[str, ...]:
        """The differences between the snapshot and home and volumes, each in words; empty: none."""
        return self._snapshots.differences(session, id, except_paths, at_a_glance=at_a_glance)

    def restore(self, session: Session, id: str) -> None:
        """Make home and volumes of a session that is stopped equal to their snapshot.

        Raises:
            RefitError: the snapshot of one of them isn't there; all are as they were.
        """
        self._snapshots.restore(session, id)

    def bring_files(self, session: Session, id: str, paths: Iterable[str], *, to: str = "", suffix: str = "") -> None:
        """Let single files and folders be what they are in a snapshot, while the session runs or not.

        Raises:
            RefitError: one isn't in the snapshot, or `to` can't be made: nothing was brought.
        """
        self._snapshots.bring_files(session, id, paths, to=to, suffix=suffix)


def _check_label(name: str, of: str) -> str:
    """A name, if it can become one of a host or a label, which can't end with a hyphen.

    Raises:
        IllegalName: not even Refit has such names.
        RefitError: it can't.
    """
    if check_name(name).endswith("-"):
        raise RefitError(
            f"{name!r} can't be the name of a {of} on Kubernetes.",
            why="It becomes the name of a host or a label, which can't end with a hyphen.",
            hint=f"take {name.rstrip('-')!r}, for instance.",
        )
    return name


def _uid(metadata: Mapping[str, object]) -> int:
    annotations = metadata.get("annotations")
    told = annotations.get(UID, "") if isinstance(annotations, Mapping) else ""
    return int(told) if str(told).isdecimal() else -1
