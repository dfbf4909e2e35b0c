"""The sshd in the slots of a session: it reads the Secret of the session, which kubelet brings into both slots.

The files are made on Refit's own machine (`sessions.ssh`), as for sessions there.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from flows.core import fence
from flows.core.errors import RefitError
from flows.core.waiting import wait_until
from flows.host.sockets import why_unreached, written_ends
from flows.sessions.engine import KEYS_SECONDS
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, ProgramEnded
from flows.sessions.kubernetes.isolation import Isolation, policy
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.kubernetes.records import SessionPod, Slot
from flows.sessions.kubernetes.slots import Slots
from flows.sessions.kubernetes.ssh_mounts import FILES, TOLD, VERSION
from flows.sessions.model import SSH_PORT, Session

# Seconds for what the program of a slot does by itself, once its files are there.
_CALLED_SECONDS = 30.0
# Seconds in which a Pod's own network answers, for each try and in all: a node may be without cores for some.
_TRIED_SECONDS, _REACHED_SECONDS = 5.0, 20.0
# Of sysexits.h, by which the program of a slot says why it can't: EX_USAGE, EX_UNAVAILABLE.
_UNKNOWN, _NO_SSHD = 64, 69
_AUTHORIZED = FILES[0]
_REFUSALS = {
    _UNKNOWN: "Its Pod was made by a Refit that knew no ssh on Kubernetes.",
    _NO_SSHD: "Its image has no sshd for sessions.",
}


class SlotSshd:
    """Implements `engine.Sshd` in one namespace of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        placement: Placement,
        slots: Slots,
        isolation: Isolation,
        folder: Callable[[str], Path],
    ) -> None:
        """Nothing is asked of the cluster yet; `folder` says where the files for a session's sshd are."""
        self._cluster, self._placement, self._slots, self._isolation = cluster, placement, slots, isolation
        self._folder = folder

    def check(self, session: Session) -> None:
        """Find out whether a NetworkPolicy can let Refit alone reach the sshd of sessions, and the Pod can have one.

        Raises:
            RefitError: nobody has said from where Refit comes, or the session runs in a Pod of before.
        """
        self._check_policy(session)
        if any(pod.ssh is None for pod, _ in self._with_home(session.name)):
            raise _refused(session, _UNKNOWN)

    def _check_policy(self, session: Session) -> None:
        if policy(self._cluster.options) is None:
            raise RefitError(
                "Nobody is let into sessions on Kubernetes by ssh.",
                why="Every Pod of the cluster could try its keys at their sshd: no NetworkPolicy keeps others out.",
                hint="write into `kubernetes.gateway_addresses` from where Refit comes, such as 192.0.2.7/32; "
                f"`refit session ssh-keys {session.name}` shows and removes keys that it has.",
            )

    def provide(self, session: Session, wait: float = KEYS_SECONDS) -> None:
        """Let the slots of a session read its files as they are now; `wait`: seconds in which those that run have to.

        Kubelet looks each minute, and a cache of its own may be a minute old; told of a change of the Pod, it looks at
        once.

        Raises:
            RefitError: kubelet has not brought it to a slot that runs, or others could reach the sshd of a session that
                has keys.
        """
        if not (files := self._files(session)):  # it has had no key yet
            return
        if files.get(_AUTHORIZED):
            self._check_policy(session)
        version = _version(files)
        self._isolation.ensure()
        name = manifests.secret(session.name)
        secret = self._cluster.find("secrets", name)
        if secret is None:
            raise _without_secret(session, self._cluster.options.namespace)
        there = secret.get("data") or {}
        asked = {key: base64.b64encode(data).decode() for key, data in {**files, VERSION: version.encode()}.items()}
        if any(there.get(key) != asked.get(key) for key in (*FILES, VERSION)):
            gone = dict.fromkeys(there.keys() & set(FILES) - asked.keys())
            self._cluster.patch("secrets", name, {"data": {**asked, **gone}}, "merge")
        # A Refit that wrote the Secret may have been killed before it told kubelet.
        for pod in self._placement.pods(session.name):
            if not pod.ending and pod.ssh not in (None, version):
                self._slots.annotate(pod.name, {TOLD: version})
        for pod, slot in self._with_home(session.name) if wait else ():
            if pod.ssh is not None:
                self._call(session, pod, slot, "keys", version, str(slot.opened), str(fence.number()), limit=wait)

    def is_told(self, session: Session) -> bool:
        """Whether kubelet was told of the files as they are now, for each Pod of a session that has or had keys.

        Raises:
            RefitError: the API server doesn't answer, or a file can't be read.
        """
        if not (files := self._files(session)):
            return True
        pods = (pod for pod in self._placement.pods(session.name) if not (pod.ending or pod.over))
        return all(pod.ssh in (None, _version(files)) for pod in pods)

    def start(self, session: Session) -> None:
        """Start it in the slot of a session that runs without.

        Raises:
            RefitError: its image has none, or this machine doesn't reach its Pod.
        """
        version = _version(self._files(session))
        for pod, slot in self._with_home(session.name):
            if slot.opened == session.generation:
                self._call(session, pod, slot, "sshd", version, str(slot.opened), str(fence.number()))
                self._reach(session, pod)

    def _reach(self, session: Session, pod: SessionPod) -> None:
        """Find out whether this machine reaches a Pod.

        Raises:
            ClusterError: it doesn't, also after some tries.
        """
        why = ""

        def reached() -> bool:
            nonlocal why
            why = why_unreached(pod.address, SSH_PORT, _TRIED_SECONDS)
            return not why

        if not wait_until(reached, seconds=_REACHED_SECONDS):
            raise _unreached(session, pod, why)

    def present(self, container: str) -> bool:
        """Nothing: slots begin it with the certificate, which comes with the first key."""
        return True

    def outdated(self, addresses: Mapping[str, str]) -> frozenset[str]:
        """The sessions of these that have no Pod at this address: one that died leaves it to any other.

        Raises:
            ClusterError: the API server doesn't answer.
        """
        return frozenset(name for name, address in addresses.items() if address not in self._addresses(name))

    def _addresses(self, session: str) -> set[str]:
        """The addresses that nobody else has yet: a Pod that was told to end keeps its own until it has ended."""
        return {pod.address for pod in self._placement.pods(session) if not pod.over}

    def end_logins(self, session: Session, good: Collection[str], kept: Collection[tuple[str, int]] = ()) -> int:
        """End all connections to it but those that come from `kept`: which key has opened one, its slot alone knows."""
        ends = "".join(f" {word} " for address, port in sorted(kept) for word in written_ends(address, port))
        slots = self._with_home(session.name)
        return sum(_number(self._call(session, pod, slot, "hang-up", stdin=ends.encode())) for pod, slot in slots)

    def _files(self, session: Session) -> dict[str, bytes]:
        """The files that its sshd reads, by name.

        Raises:
            RefitError: Refit's user may not read one.
        """
        there = {name: self._folder(session.name) / name for name in FILES}
        try:
            return {name: file.read_bytes() for name, file in there.items() if file.exists()}
        except OSError as error:
            raise RefitError(
                f"The files for the sshd of the session {session.name!r} can't be read.",
                why=str(error),
                hint="they belong to the user as whom Refit runs: a Refit that is root may have made them (chown).",
            ) from None

    def _call(
        self,
        session: Session,
        pod: SessionPod,
        slot: Slot,
        *words: str,
        stdin: bytes = b"",
        limit: float = _CALLED_SECONDS,
    ) -> str:
        try:
            answer = self._slots.call(pod.name, slot.name, *words, stdin=stdin, limit=limit)
            return answer.decode(errors="replace")
        except ProgramEnded as error:
            if error.code not in _REFUSALS:
                raise
            raise _refused(session, error.code) from None

    def _with_home(self, session: str) -> list[tuple[SessionPod, Slot]]:
        """The slots in which the session runs, but for one that waits for its home."""
        pods = [pod for pod in self._placement.pods(session) if not pod.ending]
        return [(pod, slot) for pod in pods for slot in pod.slots if slot.opened and not slot.late]


def _number(answer: str) -> int:
    """The number in an answer, among which programs of the session may have written; 0: there is none."""
    number = re.match(r"\s*([0-9]{1,6})\s*\Z", answer, re.ASCII)
    return int(number[1]) if number else 0


def _refused(session: Session, code: int) -> ClusterError:
    again = f"`refit session stop {session.name}` and `refit session start {session.name}` make another Pod."
    return ClusterError(
        f"Nobody can come into the session {session.name!r} by ssh.",
        why=_REFUSALS[code],
        hint=again if code == _UNKNOWN else "",
    )


def _unreached(session: Session, pod: SessionPod, why: str) -> ClusterError:
    return ClusterError(
        f"Refit doesn't reach the sshd of the session {session.name!r}.",
        why=f"{pod.address} port {SSH_PORT}, its Pod's address: {why}. Only the cluster may have a route to that, or a "
        "NetworkPolicy keeps Refit out.",
        hint="let Refit, its gateway and its jump host run where Pods are reached (on a node, inside the cluster, or "
        "with a route to the network of Pods), and `kubernetes.gateway_addresses` name the address as Pods see it.",
    )


def _without_secret(session: Session, namespace: str) -> ClusterError:
    return ClusterError(
        f"The keys of the session {session.name!r} can't be brought to it.",
        why=f"There is no Secret {manifests.secret(session.name)} in {namespace}.",
        hint=f"`refit session stop {session.name}` and `refit session start {session.name}` make another one.",
    )


def _version(files: dict[str, bytes]) -> str:
    """Another text for other files; nothing of the private key is in it, as annotations are no secrets."""
    public = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "host_key"}
    return hashlib.sha256(repr(sorted(public.items())).encode()).hexdigest()[:32]
