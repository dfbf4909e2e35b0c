"""Volumes that sessions share: claims that many nodes may have at a time.

A storage class doesn't say how many nodes may have its volumes: a claim asks for it, and gets a volume or doesn't. One
that an administrator has made counts, too, once it has the labels of Refit's own; then it is shared as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from flows.core import fence
from flows.core.errors import RefitError
from flows.core.formatting import on_a_line
from flows.sessions.homes.group_access import SHARE_FOLDER, default_list
from flows.sessions.homes.volumes import Wanted
from flows.sessions.kubernetes import manifests, records, volume_mounts
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, Conflict, StillWaiting
from flows.sessions.kubernetes.home_pods import HomePods, Mount
from flows.sessions.kubernetes.manifests import KIND, LABEL, MANY_NODES, MANY_READERS, UID, VOLUME
from flows.sessions.kubernetes.snapshot_ways import CLAIMS, remove_claim
from flows.sessions.model import HomeRef, Session, Volume, check_name

SHARED = "shared"
# Annotation of a claim: its folder is there.
OPEN = f"{LABEL}open"
_FOLDER = "all"
# Nobody's: no session's user may lock the others out of the folder.
_NOBODY = 65534
_MODE = "2770"
_LOOK_SECONDS = 2.0
_TOLD = 100  # characters of what a program says
# Reasons of events about a claim, by Kubernetes and by provisioners.
_FAILED, _WAITS = "ProvisioningFailed", "WaitForFirstConsumer"


# Of the image of a session: the person from whose own recipe it was made; empty: it is of the catalog; none: unknown.
Maker = Callable[[Session], str | None]


class SharedVolumes:
    """The shared volumes of one namespace."""

    def __init__(self, cluster: Cluster, maker: Maker) -> None:
        """Nothing is asked of the cluster yet."""
        self._cluster, self._pods, self._maker = cluster, HomePods(cluster), maker

    def all(self, **labels: str) -> dict[str, HomeRef]:
        """Name → volume."""
        claims = self._cluster.list(CLAIMS, **{KIND: SHARED, VOLUME: "", **labels})
        there = [claim["metadata"] for claim in claims if "deletionTimestamp" not in claim["metadata"]]
        return {each["labels"][VOLUME]: _ref(each) for each in sorted(there, key=lambda each: str(each["name"]))}

    def make(self, name: str) -> HomeRef:
        """Make a volume.

        Raises:
            RefitError: there is one of that name, or the storage class has none that many nodes can have.
        """
        claim, options = f"refit-shared-{check_name(name)}", self._cluster.options
        labels = {KIND: SHARED, VOLUME: name}
        manifest = manifests.claim_for(claim, options, labels, _NOBODY, MANY_NODES, options.shared_class)
        taken = RefitError(f"There is a volume {name!r} already.", hint="`refit volume list` shows all.")
        if name in self.all(**{VOLUME: name}):
            raise taken
        try:
            self._cluster.create(CLAIMS, manifest)
        except Conflict:
            raise taken from None
        try:
            self._wait_for_volume(claim)
        except BaseException:
            with fence.lifted():
                remove_claim(self._cluster, claim)
            raise
        return HomeRef(f"{claim}/{_FOLDER}")

    def _wait_for_volume(self, claim: str) -> None:
        """Wait until a claim has its volume, unless its class waits for the first Pod that has it.

        Raises:
            RefitError: it gets none.
        """
        end, waits = time.monotonic() + self._cluster.options.start_seconds, self._class_waits(claim)
        while not waits and time.monotonic() < end:
            with suppress(StillWaiting):
                self._cluster.wait(CLAIMS, claim, _is_bound, _LOOK_SECONDS, f"{claim} gets no volume")
                break
            reasons = {str(event.get("reason", "")) for event in self._events() if _is_about(event, claim)}
            waits = _WAITS in reasons
            if _FAILED in reasons:
                break
        told = self._cluster.find(CLAIMS, claim)
        if waits or (_is_bound(told) and MANY_NODES in _modes(told)):
            return
        storage = (told or {}).get("spec", {}).get("storageClassName") or "none"
        raise RefitError(
            f"The storage class {storage} has no volume that many nodes can write to at a time.",
            why=self._why(claim) or f"The volume of the claim {claim} can be had as {_in_words(told)} alone.",
            hint=f"let `kubernetes.shared_storage_class` name one that has {MANY_NODES}: that of a network file "
            "system, as a rule.",
        )

    def _class_waits(self, claim: str) -> bool:
        """Whether the class of a claim binds it to a volume with its first Pod alone, as far as Refit may know."""
        told = self._cluster.find(CLAIMS, claim) or {"spec": {}}
        try:
            classes = (self._cluster.of_all("apis/storage.k8s.io/v1", "storageclasses") or {}).get("items") or ()
        except ClusterError as error:
            if error.status == HTTPStatus.FORBIDDEN:  # a right that Refit can do without
                return False
            raise
        own = (each for each in classes if each["metadata"]["name"] == told["spec"].get("storageClassName"))
        return any(each.get("volumeBindingMode") == _WAITS for each in own)

    def _events(self) -> Iterable[Mapping[str, Any]]:
        with suppress(ClusterError):  # the right to read them may lack
            return self._cluster.list("events")
        return ()

    def _why(self, claim: str) -> str:
        """The words of Kubernetes about a claim without a volume; empty: it has one."""
        unbound = [*records.unbound({claim: self._cluster.find(CLAIMS, claim)})]
        return "\n".join([*unbound, *records.warnings(self._events(), [claim])]) if unbound else ""

    def mounted(self, mounts: Wanted) -> Volume | None:
        """The shared volume that a session is to have; none: there is none of that name.

        Raises:
            RefitError: sessions can't have it so.
        """
        if (ref := self.all(**{VOLUME: check_name(mounts.name)}).get(mounts.name)) is None:
            return None
        volume = Volume(mounts.name, mounts.path, ref, mounts.read_only, shared=True)
        _check_modes(volume, self._cluster.find(CLAIMS, volume_mounts.claim_of(ref)))
        return volume

    def require(self, session: Session, volume: Volume) -> None:
        """Let a session have a volume: it is there, and so is its folder, in which all of them write.

        Raises:
            RefitError: it is gone, or can't be had by many.
        """
        claim = volume_mounts.claim_of(volume.ref)
        told = self._cluster.find(CLAIMS, claim)
        if told is None or "deletionTimestamp" in told["metadata"]:
            raise RefitError(
                f"The volume {volume.name!r} of the session {session.name!r} is gone.",
                why=f"Sessions shared it, and there is no claim {claim}.",
                hint=f"bring it back, or make an empty one: `refit volume create {volume.name} --shared`.",
            )
        _check_modes(volume, told)
        if volume_mounts.folder_of(volume.ref) and OPEN not in (told["metadata"].get("annotations") or {}):
            self._open(session, volume)

    def _open(self, session: Session, volume: Volume) -> None:
        """Make the folder of a volume, by a Pod with the image of a session that is to have it.

        The Pod can write to all of the claim, which no session can. So its programs are those of the catalog.

        Raises:
            RefitError: it can't be made, or isn't as it was asked for, or the image is none of the catalog.
        """
        if maker := self._maker(session):
            raise _of_own_image(session, volume, f"It was made from {maker}'s own recipe.")
        if maker is None:
            raise _of_own_image(session, volume, "Nobody can tell just now by whom it was made.")
        claim, folder = volume.ref.split("/")
        mount = Mount(claim, claim)
        try:
            with self._pods.mounted(replace(session, uid=_NOBODY), [mount]) as work:
                told = work.run(SHARE_FOLDER, f"{mount.folder}/{folder}", default_list())
            if told.split() != [str(_NOBODY), _MODE]:
                raise RefitError(
                    f"Its folder {folder} doesn't belong to the user {_NOBODY} with the mode {_MODE}.",
                    why=f"Its user and mode are {on_a_line(told.strip()[:_TOLD]) or 'unknown'}.",
                    hint="`kubernetes.shared_storage_class` has to name a class whose volumes keep owners and modes.",
                )
        except RefitError as error:
            raise RefitError(
                f"The shared volume {volume.name!r} can't be had.",
                why="\n".join(filter(None, (f"{error.what} {error.why}".strip(), self._why(claim)))),
                hint=error.hint,
            ) from error
        self._cluster.patch(CLAIMS, claim, {"metadata": {"annotations": {OPEN: "true"}}}, "merge")

    def remove(self, ref: HomeRef) -> None:
        """Remove a volume that Refit has made.

        Raises:
            RefitError: an administrator has made its claim.
        """
        if volume_mounts.folder_of(ref):
            remove_claim(self._cluster, volume_mounts.claim_of(ref))
            return
        namespace = self._cluster.options.namespace
        raise RefitError(
            f"Refit hasn't made the claim {ref}, and doesn't remove it.",
            hint=f"`kubectl --namespace {namespace} label pvc {ref} {KIND}-` takes it out of the shared volumes.",
        )


def is_shared(claim: Mapping[str, Any] | None) -> bool:
    """Whether a claim is a shared volume's."""
    labels = ((claim or {}).get("metadata") or {}).get("labels") or {}
    return bool(labels.get(KIND) == SHARED)


def _of_own_image(session: Session, volume: Volume, why: str) -> RefitError:
    return RefitError(
        f"The shared volume {volume.name!r} has no folder yet, and the image of {session.name!r} may not make it.",
        why=why,
        hint=f"start another session with `--volume {volume.name}:{volume.path}` first, whose image is of the catalog.",
    )


def _ref(metadata: Mapping[str, Any]) -> HomeRef:
    """The volume of a claim: a folder in one that Refit has made, else all of it."""
    own = UID in (metadata.get("annotations") or {})
    return HomeRef(f"{metadata['name']}/{_FOLDER}" if own else metadata["name"])


def _check_modes(volume: Volume, claim: Mapping[str, Any] | None) -> None:
    """Find out whether many sessions can have a volume.

    Raises:
        RefitError: they can't, or can't write there.
    """
    modes = _modes(claim)
    if MANY_NODES in modes or (MANY_READERS in modes and volume.read_only):
        return
    hint = f"share a claim with {MANY_NODES}, or with {MANY_READERS} for sessions that read alone."
    if MANY_READERS in modes:
        hint = f"ask for it as `{volume.name}:{volume.path}:ro`: many sessions may read it."
    raise RefitError(
        f"The volume {volume.name!r} can't be shared{' by sessions that write' if MANY_READERS in modes else ''}.",
        why=f"Its claim {volume_mounts.claim_of(volume.ref)} can be had as {_in_words(claim)} alone.",
        hint=hint,
    )


def _modes(claim: Mapping[str, Any] | None) -> frozenset[str]:
    """The ways in which a claim can be had: those of its volume, or those that it asks for before it has one."""
    told = claim or {}
    of_volume = (told.get("status") or {}).get("accessModes") if _is_bound(claim) else None
    return frozenset(of_volume or (told.get("spec") or {}).get("accessModes") or ())


def _in_words(claim: Mapping[str, Any] | None) -> str:
    return ", ".join(sorted(_modes(claim))) or "nothing"


def _is_bound(told: Mapping[str, Any] | None) -> bool:
    return ((told or {}).get("status") or {}).get("phase") == "Bound"


def _is_about(event: Mapping[str, Any], claim: str) -> bool:
    of = event.get("involvedObject") or {}
    return (of.get("kind"), of.get("name")) == ("PersistentVolumeClaim", claim)
