"""The two ways in which a snapshot of a session's claims is held: as VolumeSnapshots, or as claims with copies.

Both hold home and own volumes, all of them or none: a snapshot without one of them is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from flows.core import fence
from flows.sessions.homes.volumes import Part, parts
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, Conflict
from flows.sessions.kubernetes.home_pods import HomePods, Mount
from flows.sessions.kubernetes.kinds import GROUPS, SNAPSHOTS
from flows.sessions.kubernetes.manifests import KIND, LABEL, SESSION
from flows.sessions.model import HOME, Session

CLAIMS = "persistentvolumeclaims"
COPY, VIEW = "copy", "view"
# Labels: which snapshot something belongs to, and which part of it; of an id that a label can't hold, a digest.
SNAPSHOT, PART = f"{LABEL}snapshot", f"{LABEL}part"
WHOLE = f"{LABEL}whole"
_TURN = f"{LABEL}turn"
_READY_SECONDS, _GONE_SECONDS = 1800.0, 60.0


class Way(Protocol):
    """How snapshots are held. Every verb can be repeated."""

    def take(self, session: Session, id: str) -> None:
        """Let the snapshot be what home and volumes are now, whether or not there was one."""

    def has(self, session: str, id: str, volumes: Sequence[str] = ()) -> bool:
        """Whether there is a whole snapshot of the home, and of these volumes."""

    def view(self, session: Session, id: str) -> Iterator[Mapping[str, str]]:
        """Part → the claim that has its snapshot, for the `with` block; nobody may write to it."""

    def forget(self, session: str, id: str) -> None:
        """Remove the snapshot."""


def labelled(id: str) -> str:
    """A snapshot as a label names it."""
    return hashlib.sha256(id.encode()).hexdigest()[:16]


def inside(part: Part) -> str:
    """The folder of a claim in which a part's content is."""
    return "" if part.volume else HOME.rpartition("/")[2]


def live(session: Session, *, read_only: bool) -> tuple[Mount, ...]:
    """The claims of a session, for a Pod beside it."""
    return tuple(_mount(part.ref, part, read_only=read_only) for part in parts(session))


def kept(session: Session, claims: Mapping[str, str], *, read_only: bool = True) -> tuple[Mount, ...]:
    """The claims of a snapshot, for a Pod, in the order of `live`."""
    return tuple(_mount(claims[part.volume], part, read_only=read_only) for part in parts(session))


def _mount(claim: str, part: Part, *, read_only: bool) -> Mount:
    """The mount of a claim, which a Pod may have twice."""
    return Mount(claim if read_only else f"{claim}-open", claim, inside(part), read_only)


def claim_of(name: str, session: Session, kind: str, labels: Mapping[str, str], cluster: Cluster) -> dict[str, Any]:
    """A claim that is no home of a session, though it has the size of one."""
    return manifests.home_claim(name, cluster.options, {**labels, SESSION: session.name, KIND: kind}, session.uid)


def make_claim(cluster: Cluster, claim: Mapping[str, Any]) -> None:
    """Make a claim, unless it is there.

    Raises:
        ClusterError: one of that name is there for something else, with other labels.
    """
    name, labels = claim["metadata"]["name"], claim["metadata"]["labels"]
    try:
        cluster.create(CLAIMS, claim)
    except Conflict:
        there = (cluster.find(CLAIMS, name) or {"metadata": {}})["metadata"]
        if not labels.items() <= (there.get("labels") or {}).items():
            raise ClusterError(
                f"There is a claim {name} already, made for something else.",
                hint=f"if nobody needs it, `kubectl delete pvc {name}`; then try again.",
            ) from None


def remove_claim(cluster: Cluster, name: str) -> None:
    """Remove a claim, and wait until it is gone: as long as a Pod has it, it is only about to go.

    Raises:
        ClusterError: it doesn't go, and the claim says why.
    """
    cluster.delete(CLAIMS, name)
    cluster.wait(CLAIMS, name, lambda told: told is None, _GONE_SECONDS, f"{name} doesn't go")


class Copies:
    """Holds snapshots as claims that a Pod beside the session copies to."""

    def __init__(self, cluster: Cluster, pods: HomePods) -> None:
        self._cluster, self._pods = cluster, pods

    def prepare(self, session: Session, id: str, others: Iterable[str]) -> None:
        """Begin the Pod that does what the next verbs ask for, about this snapshot and others, until it is released."""
        claims = self._claims(session, id)
        mounts = [mount for only in (True, False) for mount in live(session, read_only=only)]
        mounts += [mount for only in (True, False) for mount in kept(session, claims, read_only=only)]
        for other in others:
            with self.view(session, other) as there:
                mounts += kept(session, there)
        self._pods.prepare(session, mounts)

    def _claims(self, session: Session, id: str) -> dict[str, str]:
        """Part → the claim of its copy, made if need be."""
        claims = {part.volume: _name("copy", session.name, id, part.volume) for part in parts(session)}
        for volume, claim in claims.items():
            labels = {SNAPSHOT: labelled(id), PART: volume}
            self._cluster.ensure(CLAIMS, claim_of(claim, session, COPY, labels, self._cluster))
        return claims

    def take(self, session: Session, id: str) -> None:
        """Copy what has changed since the last time."""
        claims = self._claims(session, id)
        sources, targets = live(session, read_only=True), kept(session, claims, read_only=False)
        with self._pods.mounted(session, [*sources, *targets]) as work:
            for source, target in zip(sources, targets, strict=True):
                work.call("mirror", source.folder, target.folder)
        for claim in claims.values():
            self._cluster.patch(CLAIMS, claim, {"metadata": {"annotations": {WHOLE: "true"}}}, "merge")

    def has(self, session: str, id: str, volumes: Sequence[str] = ()) -> bool:
        """Whether the claims are there, with whole copies."""
        claims = self._cluster.list(CLAIMS, **{KIND: COPY, SESSION: session, SNAPSHOT: labelled(id)})
        there = [each["metadata"] for each in claims if "deletionTimestamp" not in each["metadata"]]
        whole = [each for each in there if WHOLE in (each.get("annotations") or {})]
        return {"", *volumes} <= {each["labels"].get(PART, "") for each in whole}

    @contextmanager
    def view(self, session: Session, id: str) -> Iterator[Mapping[str, str]]:
        """The claims themselves."""
        yield {part.volume: _name("copy", session.name, id, part.volume) for part in parts(session)}

    def forget(self, session: str, id: str) -> None:
        """Remove the claims."""
        for claim in self._cluster.list(CLAIMS, **{KIND: COPY, SESSION: session, SNAPSHOT: labelled(id)}):
            remove_claim(self._cluster, claim["metadata"]["name"])


class VolumeSnapshots:
    """Holds snapshots as VolumeSnapshots; a Pod that reads one gets a claim that begins with it."""

    def __init__(self, cluster: Cluster, snapshot_class: str) -> None:
        self._cluster, self._class = cluster, snapshot_class

    def take(self, session: Session, id: str) -> None:
        """Take new ones, and then remove those of before: until all are there, the snapshot is what it was."""
        before = self._of(session.name, id)
        turn = 1 + max((int(each["metadata"]["labels"][_TURN]) for each in before), default=0)
        names = [self._take(session, id, part, turn) for part in parts(session)]
        for name in names:
            self._cluster.wait(SNAPSHOTS, name, _is_cut, _READY_SECONDS, f"the snapshot {name} isn't taken")
        for each in before:
            self._cluster.delete(SNAPSHOTS, each["metadata"]["name"])

    def _take(self, session: Session, id: str, part: Part, turn: int) -> str:
        name = f"{_name('snapshot', session.name, id, part.volume)}-{turn}"
        labels = {SESSION: session.name, KIND: "snapshot", SNAPSHOT: labelled(id), PART: part.volume, _TURN: str(turn)}
        metadata = {"name": name, "namespace": self._cluster.options.namespace, "labels": labels}
        source = {"persistentVolumeClaimName": part.ref}
        manifest = {
            "apiVersion": f"{GROUPS[SNAPSHOTS]}/v1",
            "kind": "VolumeSnapshot",
            "metadata": metadata,
            "spec": {"volumeSnapshotClassName": self._class, "source": source},
        }
        self._cluster.ensure(SNAPSHOTS, manifest)
        return name

    def _of(self, session: str, id: str) -> list[dict[str, Any]]:
        return self._cluster.list(SNAPSHOTS, **{SESSION: session, KIND: "snapshot", SNAPSHOT: labelled(id)})

    def newest(self, session: str, id: str) -> Mapping[str, str]:
        """Part → its snapshot, of the newest set that was taken whole: a killed Refit may have left a part of one."""
        sets: dict[int, dict[str, str]] = {}
        for each in filter(_is_cut, self._of(session, id)):
            labels = each["metadata"]["labels"]
            sets.setdefault(int(labels[_TURN]), {})[labels.get(PART, "")] = each["metadata"]["name"]
        # Those of before go only when all of the next ones are there.
        return max(sorted(sets.items(), reverse=True), key=lambda item: len(item[1]), default=(0, {}))[1]

    def has(self, session: str, id: str, volumes: Sequence[str] = ()) -> bool:
        """Whether they are there, and taken."""
        return {"", *volumes} <= self.newest(session, id).keys()

    @contextmanager
    def view(self, session: Session, id: str) -> Iterator[Mapping[str, str]]:
        """Claims that begin with them, which go afterwards."""
        newest = self.newest(session.name, id)
        with ExitStack() as stack:
            claims = {
                part.volume: stack.enter_context(self._claim(session, newest[part.volume])) for part in parts(session)
            }
            yield claims

    @contextmanager
    def _claim(self, session: Session, snapshot: str) -> Iterator[str]:
        name = snapshot.replace("refit-snapshot-", "refit-view-")
        self.derive(name, session, VIEW, snapshot, {})
        try:
            yield name
        finally:
            with fence.lifted():
                remove_claim(self._cluster, name)

    def derive(self, name: str, session: Session, kind: str, snapshot: str, labels: Mapping[str, str]) -> None:
        """Make a claim that begins with a snapshot."""
        made = claim_of(name, session, kind, labels, self._cluster)
        made["spec"]["dataSource"] = {
            "apiGroup": GROUPS[SNAPSHOTS],
            "kind": "VolumeSnapshot",
            "name": snapshot,
        }
        make_claim(self._cluster, made)

    def forget(self, session: str, id: str) -> None:
        """Remove them."""
        for each in self._of(session, id):
            self._cluster.delete(SNAPSHOTS, each["metadata"]["name"])


def _name(kind: str, session: str, id: str, volume: str) -> str:
    told = hashlib.sha256(f"{session} {id} {volume}".encode()).hexdigest()[:20]
    return f"refit-{kind}-{told}"


def _is_cut(told: Mapping[str, Any] | None) -> bool:
    """Whether the volume may change again without changing the snapshot.

    Raises:
        ClusterError: it can't be taken.
    """
    status = (told or {}).get("status") or {}
    if (error := status.get("error")) and not status.get("readyToUse"):
        raise ClusterError("The storage class doesn't take a snapshot.", why=str(error.get("message", "")))
    return bool(status.get("creationTime"))


__all__ = ["COPY", "VIEW", "Copies", "VolumeSnapshots", "Way", "inside", "kept", "live"]
