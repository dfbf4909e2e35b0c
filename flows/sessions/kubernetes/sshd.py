"""The sshd in the slots of a session: it reads the Secret of the session, which kubelet brings into both slots.

The files are made on Refit's own machine (`sessions.ssh`), as for sessions there.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection

from flows.core.errors import RefitError
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, ProgramEnded
from flows.sessions.kubernetes.isolation import Isolation, policy
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.kubernetes.records import SessionPod, Slot
from flows.sessions.kubernetes.slots import Slots
from flows.sessions.kubernetes.ssh_mounts import FILES, TOLD, VERSION
from flows.sessions.model import Session

# Kubelet looks each minute, and a cache of its own may be a minute old; told of a change of the Pod, it looks at once.
_BROUGHT_SECONDS = 120.0
# Of sysexits.h, by which the program of a slot says why it can't: EX_USAGE, EX_UNAVAILABLE.
_UNKNOWN, _NO_SSHD = 64, 69
_REFUSALS = {
    _UNKNOWN: "Its Pod was made by a Refit that knew no ssh on Kubernetes.",
    _NO_SSHD: "Its image has no sshd for sessions.",
}


class SlotSshd:
    """Implements `engine.Sshd` in one namespace of a cluster."""

    def __init__(self, cluster: Cluster, placement: Placement, slots: Slots, isolation: Isolation) -> None:
        self._cluster, self._placement, self._slots, self._isolation = cluster, placement, slots, isolation

    def check(self) -> None:
        """Find out whether a NetworkPolicy can let Refit alone reach the sshd of sessions.

        Raises:
            RefitError: nobody has said from where it comes.
        """
        if policy(self._cluster.options) is None:
            raise RefitError(
                "Nobody is let into sessions on Kubernetes by ssh.",
                why="Every Pod of the cluster could try its keys at their sshd: no NetworkPolicy keeps others out.",
                hint="write into `kubernetes.gateway_addresses` from where Refit comes, such as 192.0.2.7/32.",
            )

    def provide(self, session: Session) -> None:
        """Let the slots of a session read its folder as it is now.

        Raises:
            RefitError: kubelet has not brought it to a slot that runs.
        """
        if not (files := _files(session)):  # it has had no key yet
            return
        version = _version(files)
        self._isolation.ensure()
        name = manifests.secret(session.name)
        there = (self._cluster.find("secrets", name) or {}).get("data") or {}
        asked = {key: base64.b64encode(data).decode() for key, data in {**files, VERSION: version.encode()}.items()}
        if all(there.get(key) == asked.get(key) for key in (*FILES, VERSION)):
            return
        gone = dict.fromkeys(there.keys() & set(FILES) - asked.keys())
        self._cluster.patch("secrets", name, {"data": {**asked, **gone}}, "merge")
        for pod in self._placement.pods(session.name):
            if not pod.ending:
                self._slots.annotate(pod.name, {TOLD: version})
        for pod, slot in self._with_home(session.name):
            self._call(session, pod, slot, "keys", version)

    def start(self, session: Session) -> None:
        """Start it in the slot of a session that runs without.

        Raises:
            RefitError: its image has none.
        """
        version = _version(_files(session))
        for pod, slot in self._with_home(session.name):
            self._call(session, pod, slot, "sshd", version)

    def end_logins(self, session: Session, good: Collection[str]) -> int:
        """End all connections to it: which key has opened one is known in its slot alone."""
        slots = self._with_home(session.name)
        return sum(int(self._call(session, pod, slot, "hang-up").strip() or 0) for pod, slot in slots)

    def _call(self, session: Session, pod: SessionPod, slot: Slot, *words: str) -> str:
        try:
            return self._slots.call(pod.name, slot.name, *words, limit=_BROUGHT_SECONDS).decode(errors="replace")
        except ProgramEnded as error:
            if error.code not in _REFUSALS:
                raise
            raise ClusterError(
                f"Nobody can come into the session {session.name!r} by ssh.",
                why=_REFUSALS[error.code],
                hint=f"`refit session stop {session.name}` and `refit session start {session.name}` make another Pod."
                if error.code == _UNKNOWN
                else "",
            ) from None

    def _with_home(self, session: str) -> list[tuple[SessionPod, Slot]]:
        """The slots in which the session runs, but for one that waits for its home."""
        pods = [pod for pod in self._placement.pods(session) if not pod.ending]
        return [(pod, slot) for pod in pods for slot in pod.slots if slot.opened and not slot.late]


def _files(session: Session) -> dict[str, bytes]:
    """The files that its sshd reads, by name."""
    there = {name: session.ssh_folder / name for name in FILES}
    return {name: file.read_bytes() for name, file in there.items() if file.exists()}


def _version(files: dict[str, bytes]) -> str:
    """Another text for other files; nothing of the private key is in it, as annotations are no secrets."""
    public = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "host_key"}
    return hashlib.sha256(repr(sorted(public.items())).encode()).hexdigest()[:32]
