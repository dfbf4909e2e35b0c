"""Pods beside sessions that have homes and their copies mounted, and the program that works on them there.

A Pod has the session's image, which its node has already, and the session's user. It goes when its work is done; one
that a killed Refit has left is removed by the next of its name, and Kubernetes ends it after an hour. A move prepares
one that stays from the copy to the proof: to begin a Pod takes seconds, in which the session would be away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.core import fence
from flows.core.errors import RefitError
from flows.core.formatting import on_a_line
from flows.core.programs.command import ProgramFailed
from flows.sessions.kubernetes import home_program, manifests, records
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, StillWaiting
from flows.sessions.kubernetes.manifests import KIND, LABEL, SESSION, ClusterOptions
from flows.sessions.kubernetes.programs import output_of
from flows.sessions.kubernetes.trial_pods import on_node
from flows.sessions.model import Session

POD = "home"
WORK_SECONDS = 3600.0
# Annotation of a Pod that stays: the number of the lease under which its programs are started.
LEASE = f"{LABEL}lease"
_END_SECONDS = 60.0
_PROGRAM = Path(home_program.__file__).read_text(encoding="utf-8")
_FOLDER = "/run/refit/parts"
_OF_SESSIONS = ("securityContext", "imagePullSecrets", "nodeSelector")
# On a node that was closed, for a drain, the home is still in use.
_CLOSED = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
_WAITS = "trap 'exit 0' TERM; sleep 3600 & wait"
_WHAT = {
    home_program.MISSING: ("{path!r} isn't in the snapshot.", "`refit session diff` shows what is there."),
    home_program.LINK: ("{path!r} leads over a link in the snapshot.", "name the path without the link."),
    home_program.THERE: ("The folder {path!r} can't be made.", "choose another name."),
    home_program.UNREADABLE: (
        "{path!r} can't be read by its own user, so that nobody can copy the home.",
        "let its owner call `chmod u+r` for it, for a folder `chmod u+rx`.",
    ),
    home_program.FAILED: (
        "The home can't be copied or compared: {path}",
        "see that its volume has room and no errors, and try again.",
    ),
}


@dataclass(frozen=True)
class Mount:
    """A claim as a Pod has it.

    Attributes:
        name: in the Pod, where a claim may be mounted twice.
        claim: its name.
        inside: folder in the claim that is worked on; empty: all of it.
        read_only: whether it can't be written to.
    """

    name: str
    claim: str
    inside: str = ""
    read_only: bool = False

    @property
    def folder(self) -> str:
        """Where the program finds it."""
        return f"{_FOLDER}/{self.name}/{self.inside}".rstrip("/")


def pod(
    session: Session, mounts: Sequence[Mount], node: str, options: ClusterOptions, lease: int = 0
) -> dict[str, Any]:
    """The Pod that has these claims. Pure.

    Args:
        session: the session whose image and user it has.
        mounts: the claims.
        node: on which the home is in use; empty: on any.
        options: where sessions run.
        lease: number of the lease for whose holder it stays; 0: it goes with its work.
    """
    own = manifests.pod_spec(session, options, "")
    claims = {mount.claim: number for number, mount in enumerate(mounts)}
    spec = {
        **{key: own[key] for key in _OF_SESSIONS if key in own},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "tolerations": [*own.get("tolerations", ()), _CLOSED],
        "activeDeadlineSeconds": round(WORK_SECONDS),
        "terminationGracePeriodSeconds": 1,
        "volumes": [
            {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
            for claim, number in claims.items()
        ],
        "containers": [_container(options.reference(session.image), mounts, claims)],
        **({"affinity": on_node(node)} if node else {}),
    }
    metadata = {
        "name": _name(session.name, str(lease)) if lease else _name(session.name, *map(str, mounts)),
        "namespace": options.namespace,
        "labels": {SESSION: session.name, KIND: POD},
        "annotations": {LEASE: str(lease)} if lease else {},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _name(*of: str) -> str:
    return f"refit-{POD}s-{hashlib.sha256(' '.join(of).encode()).hexdigest()[:16]}"


def _container(image: str, mounts: Sequence[Mount], claims: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": POD,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _WAITS],
        "workingDir": "/",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": f"claim-{claims[each.claim]}", "mountPath": f"{_FOLDER}/{each.name}", "readOnly": each.read_only}
            for each in mounts
        ],
    }


class HomeWork:
    """The verbs of the program, in one Pod that runs."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name

    def call(self, verb: str, *words: str, limit: float = WORK_SECONDS) -> str:
        """The output of a verb of `home_program`.

        Raises:
            RefitError: it can't be done, for a path that the error names.
            ClusterError: the Pod can't be reached, or has ended.
        """
        argv = ["python3", "-B", "-", verb, *words]
        try:
            return output_of(self._cluster, self._name, POD, argv, _PROGRAM, limit=limit, most=1 << 24)
        except ProgramFailed as error:
            if (told := _WHAT.get(error.exit_code_of_program or 0)) is None:
                raise
            path = on_a_line(error.tail.strip())
            raise RefitError(told[0].format(path=path), hint=told[1]) from None

    def run(self, program: str, *words: str, limit: float = WORK_SECONDS) -> str:
        """The output of a program in Python.

        Raises:
            RefitError: it fails.
            ClusterError: the Pod can't be reached, or has ended.
        """
        argv = ["python3", "-B", "-", *words]
        return output_of(self._cluster, self._name, POD, argv, program, limit=limit, most=1 << 16)


class HomePods:
    """Makes such Pods, and ends them."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is asked of the cluster yet."""
        self._cluster = cluster

    def prepare(self, session: Session, mounts: Sequence[Mount]) -> None:
        """Begin a Pod with these claims that stays until `release`, if the home is in use on a node.

        Elsewhere it could hold the volume on a node on which its session is not.

        Raises:
            ClusterError: it doesn't run, and why.
        """
        if not (lease := fence.number()):
            return
        self.release(session.name)
        if node := self._node_of(session):
            self._begin(pod(session, mounts, node, self._cluster.options, lease))

    def release(self, session: str) -> None:
        """End the Pods of a session that stay; none may be there. Those of an earlier lease may be at work still."""
        for told in self._cluster.list("pods", **{SESSION: session, KIND: POD}):
            if lease := (told["metadata"].get("annotations") or {}).get(LEASE):
                self._end(told["metadata"]["name"], at_work=lease != str(fence.number()))

    def end_those_with(self, claims: Collection[str]) -> None:
        """End the Pods that have one of these claims."""
        for told in self._cluster.list("pods", **{KIND: POD}):
            volumes = told["spec"].get("volumes") or ()
            if {each.get("persistentVolumeClaim", {}).get("claimName") for each in volumes} & {*claims}:
                self._end(told["metadata"]["name"])

    @contextmanager
    def mounted(self, session: Session, mounts: Sequence[Mount]) -> Iterator[HomeWork]:
        """A Pod with these claims, on the node on which the session's home is in use, for the `with` block.

        Raises:
            ClusterError: it doesn't run, and why.
        """
        if staying := self._staying(session, mounts):
            try:
                yield HomeWork(self._cluster, staying)
            except BaseException:  # what it began may go on in there
                with fence.lifted():  # nobody else's bears this name
                    self._end(staying)
                raise
            return
        if fence.number():
            self.release(session.name)  # a killed holder of the lease may have begun what goes on in one
        manifest = pod(session, mounts, self._node_of(session), self._cluster.options)
        name, at_work = manifest["metadata"]["name"], True
        self._end(name)
        try:
            self._begin(manifest)
            yield HomeWork(self._cluster, name)
            at_work = False
        finally:
            with fence.lifted():
                self._end(name, at_work=at_work)

    def _begin(self, manifest: Mapping[str, Any]) -> None:
        name, seconds = manifest["metadata"]["name"], self._cluster.options.start_seconds
        self._cluster.create("pods", manifest)
        try:
            self._cluster.wait("pods", name, _runs, seconds, f"{name} doesn't run")
        except StillWaiting as error:
            why = records.waits_for(self._cluster.find("pods", name) or {})
            raise ClusterError(error.what, why=why, hint=error.hint) from None

    def _staying(self, session: Session, mounts: Sequence[Mount]) -> str:
        """The name of a Pod that stays for this holder of the lease, and has these claims; empty: there is none."""
        if not (lease := fence.number()):
            return ""
        name = _name(session.name, str(lease))
        told = self._cluster.find("pods", name)
        if told is None or "deletionTimestamp" in told["metadata"] or told["status"].get("phase") != "Running":
            return ""
        (container,) = told["spec"]["containers"]
        claims = {
            each["name"]: each.get("persistentVolumeClaim", {}).get("claimName") for each in told["spec"]["volumes"]
        }
        there = {each["mountPath"]: claims.get(each["name"]) for each in container["volumeMounts"]}
        return name if all(there.get(f"{_FOLDER}/{each.name}") == each.claim for each in mounts) else ""

    def _end(self, name: str, *, at_work: bool = True) -> None:
        """End a Pod, if there is one. If something is at work in it, its kubelet has to say that it has ended."""
        if self._cluster.find("pods", name):
            self._cluster.delete("pods", name, grace=1 if at_work else 0)
            self._cluster.wait("pods", name, lambda told: told is None, _END_SECONDS, f"{name} doesn't end")

    def _node_of(self, session: Session) -> str:
        """The node on which the home is in use; empty: none. One that a Pod only waits for doesn't have it yet."""
        told = self._cluster.list("pods", **{SESSION: session.name, KIND: "session"})
        pods = [each for each in map(records.pod, told) if each.node and not each.over]
        has_begun = {each.name: any(slot.container for slot in each.slots) for each in pods}
        best = max(pods, key=lambda each: (not each.idle, has_begun[each.name], not each.ending), default=None)
        return best.node if best else ""


def _runs(told: Mapping[str, Any] | None) -> bool:
    """Whether the container of such a Pod runs.

    Raises:
        ClusterError: it never will.
    """
    if told is None:
        return False
    status = told.get("status") or {}
    for seen in status.get("containerStatuses") or ():
        if why := records.trouble(seen.get("state") or {}):
            raise ClusterError("The Pod for a home doesn't start.", why=why)
    if status.get("phase") in ("Failed", "Succeeded"):
        raise ClusterError("The Pod for a home has ended.", why=str(status.get("message", "")))
    return status.get("phase") == "Running"
