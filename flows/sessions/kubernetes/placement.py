"""The Pods and slots in which sessions run: which one a generation gets, and why it has to wait for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from http import HTTPStatus
from pathlib import Path
from threading import Condition
from typing import Any

from cachetools import TTLCache, cached

from flows.core.waiting import retry
from flows.sessions.kubernetes import manifests, records, resources, volume_mounts
from flows.sessions.kubernetes.claim_templates import ClaimTemplates
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, ClusterOptions, Conflict, StillWaiting
from flows.sessions.kubernetes.home_pods import HomePods
from flows.sessions.kubernetes.manifests import KIND, OPENED, PLACED, SESSION
from flows.sessions.kubernetes.pulls import pull_to
from flows.sessions.kubernetes.records import SessionPod, Slot
from flows.sessions.kubernetes.refusals import SETTLE_PAUSE_SECONDS, SETTLE_SECONDS, NeverBegins, never_runs
from flows.sessions.model import Session

_SCRIPT = Path(__file__).with_name("slot.sh")
_END_SECONDS = 60.0
# The scheduler decides at once; a node that an autoscaler adds is not waited for.
_SCHEDULED_SECONDS = 15.0
_CLOSED_SECONDS = 3.0
_CONFLICTS, _CONFLICT_PAUSE_SECONDS = 5, 0.2


class MayWrite(ClusterError):
    """A Pod that was told to end, and of which Kubernetes doesn't say that it has."""


class Placement:
    """Gives generations of sessions their slots."""

    def __init__(self, cluster: Cluster, options: ClusterOptions) -> None:
        self._cluster, self._options, self._home_pods = cluster, options, HomePods(cluster)
        self._templates = ClaimTemplates(cluster)
        self._closed = cached(TTLCache[tuple[()], frozenset[str]](1, _CLOSED_SECONDS), condition=Condition())(
            self._read_closed
        )

    @cached_property
    def _script(self) -> str:
        """The name of the ConfigMap with the program of slots, which is made if need be."""
        text = _SCRIPT.read_text(encoding="utf-8")
        self._cluster.ensure("configmaps", manifests.scripts(self._options, text))
        return manifests.scripts_name(text)

    def pods(self, session: str = "") -> tuple[SessionPod, ...]:
        """The Pods of a session, or those of all."""
        if not session:
            return tuple(self._cluster.each("pods", records.pod, **self._of(session)))
        return tuple(self._cluster.of_session("pods", session, "session", records.pod))

    def seen_now(self, session: str) -> tuple[SessionPod, ...]:
        """The Pods of a session by the API server's own word, for whom what was told a moment ago isn't enough."""
        followed: tuple[SessionPod, ...] | None = self._cluster.follower.settled("pods", session)
        if followed is not None:
            return followed
        if changed := self._cluster.follower.own_change("pods", session):
            return tuple(self._cluster.each_since("pods", changed, records.pod, **self._of(session)))
        return tuple(self._cluster.each("pods", records.pod, **self._of(session)))

    @staticmethod
    def _of(session: str) -> dict[str, str]:
        return {SESSION: session, KIND: "session"}

    def expected(self, session: Session, pod: SessionPod) -> Mapping[str, Any]:
        """The spec of a Pod as Refit made it for a session; empty: it was made for another shape of it."""
        return manifests.pod_spec(session, self._options, self._script) if pod.shape == self._shape(session) else {}

    def place(self, session: Session, opened: str | None = None) -> tuple[SessionPod, Slot]:
        """The slot in which a generation can run now, with its image there.

        Args:
            session: the generation.
            opened: the record of a slot that is given to it, from then on; none: it stays as it is.

        Raises:
            ClusterError: there is none, or a Pod of its session may still write on a node that nobody hears of.
        """
        # Each word of a kubelet about a Pod is a change of it: one that comes between a look and a patch is no failure.
        call = partial(self._place, session, opened)
        return retry(call, Conflict, attempts=_CONFLICTS, pause=_CONFLICT_PAUSE_SECONDS)

    def _place(self, session: Session, opened: str | None) -> tuple[SessionPod, Slot]:
        pods = self.pods(session.name)
        if ending := [pod for pod in pods if pod.ending and pod.claim == session.home]:
            for pod in ending:
                self.await_end(pod)
            pods = self.pods(session.name)
        for pod in _waiting_in_vain(session, pods):
            if not _has_node(self._cluster.find("pods", pod.name)):  # it may have got one since it was told of
                self.end(pod.name)
                pods = self.pods(session.name)
        if (place := self._find_place(session, pods)) is None:
            self._make_room(session)
            name, slot = self._make(session), manifests.SLOTS[0]
            self._wait_runs(name, slot, session)
        else:
            name, slot = place[0].name, place[1].name
            is_given = place[1].generation == session.generation and place[1].image == session.image

            def begin() -> Mapping[str, Any] | None:
                given = None if is_given else self._give_slot(place[0], slot, session, session.generation, opened)
                # A volume that one node alone can have is free for this Pod once the other one is gone.
                self._leave(place[0], pods, session)
                return given or self._cluster.find("pods", name)

            self._wait_runs(name, slot, session, begin)
        pod = next(pod for pod in self.pods(session.name) if pod.name == name)
        return pod, next(each for each in pod.slots if each.name == slot)

    def has_place(self, session: Session) -> bool:
        """Whether a generation can run in a Pod that has a node, and that was made as it needs it."""
        return self._find_place(session, [pod for pod in self.pods(session.name) if pod.node]) is not None

    def _find_place(self, session: Session, pods: Iterable[SessionPod]) -> tuple[SessionPod, Slot] | None:
        return records.place(session, [pod for pod in pods if _has_claim(session, pod)], self._shape(session))

    def _wait_runs(
        self, name: str, slot: str, session: Session, begin: Callable[[], Mapping[str, Any] | None] | None = None
    ) -> None:
        """Wait until a slot runs the image of a generation; `begin` lets it, and returns the Pod.

        Raises:
            ClusterError: it never will, or not in time: the Pod, its claims and its events say why.
        """
        seconds, told = self._options.start_seconds, f"{name} doesn't run"
        try:
            self._cluster.wait("pods", name, partial(_has_image, slot, session), seconds, told, begin)
        except StillWaiting as error:
            raise ClusterError(error.what, why=self._why(session, name), hint=error.hint) from None

    def _why(self, session: Session, name: str) -> str:
        """The reasons, in Kubernetes' words, for which a Pod of a session waits, as far as Refit may read them."""
        pod = self._cluster.find("pods", name) or {}
        claims: list[str] = [session.home, *(volume_mounts.claim_of(volume.ref) for volume in session.volumes)]
        seen = {claim: self._cluster.find("persistentvolumeclaims", claim) for claim in claims}
        events, unscheduled = list[dict[str, Any]](), records.waits_for(pod)

        def is_news(event: Mapping[str, Any]) -> bool:
            """Whether it says something else than the scheduler's own word on the Pod."""
            return not (unscheduled and event.get("reason") == "FailedScheduling")

        with suppress(ClusterError):  # the right to read them may lack
            events = self._cluster.list("events")
        return "\n".join(
            filter(
                None,
                (
                    unscheduled,
                    *resources.waits_for_devices(pod),
                    *records.back_offs(pod),
                    *records.unbound(seen),
                    *records.warnings(filter(is_news, events), [name, *claims]),
                ),
            )
        )

    def _give_slot(
        self, pod: SessionPod, slot: str, session: Session, generation: int | None, opened: str | None
    ) -> Mapping[str, Any]:
        """Let a slot have another image: kubelet replaces this container alone; returns the Pod.

        Args:
            pod: that has the slot.
            slot: its name.
            session: the generation that has the image.
            generation: to which it belongs from then on; none: to nobody.
            opened: the record of what begins in it; none: nothing does.
        """
        placed = None if generation is None else str(generation)
        change = {
            "metadata": {
                "resourceVersion": pod.version,
                "annotations": {f"{PLACED}{slot}": placed, f"{OPENED}{slot}": opened},
            },
            "spec": {"containers": [{"name": slot, "image": self._options.reference(session.image)}]},
        }
        return self._cluster.patch("pods", pod.name, change)

    def _make_room(self, session: Session) -> None:
        """End the Pods of a session with this home in which nothing runs, and that don't fit it.

        One that a move has prepared would hold the home on its node, and another may be chosen.
        """
        self._home_pods.release(session.name)
        for pod in self.pods(session.name):
            if pod.claim == session.home and pod.idle:
                self.end(pod.name)

    def _leave(self, mine: SessionPod, pods: Iterable[SessionPod], session: Session) -> None:
        """End the Pods of a session on other nodes in which nothing runs any more: its home can't be on two."""
        for pod in pods:
            if pod.claim == session.home and pod.node != mine.node and pod.idle and mine.node:
                self._cluster.delete("pods", pod.name, grace=1)

    def await_end(self, pod: SessionPod) -> None:
        """Wait for the end of a Pod that was told to end.

        Raises:
            MayWrite: Kubernetes doesn't let go of it, so that nobody knows whether its programs still write.
        """
        try:
            self._cluster.wait("pods", pod.name, lambda told: told is None, _END_SECONDS, f"{pod.name} doesn't end")
        except StillWaiting as error:
            raise MayWrite(
                f"{pod.name} may still write into the home of {pod.session}.",
                why=f"{error.what} Its node {pod.node} doesn't say that it has.",
                hint=f"it ends once {pod.node} is back; if that is off for good, `kubectl delete node {pod.node}`.",
            ) from None

    def closed(self) -> frozenset[str]:
        """The nodes that were closed; those are seen that were a few seconds ago."""
        return self._closed(())

    def _read_closed(self, _: tuple[()]) -> frozenset[str]:
        try:
            return records.closed((self._cluster.of_all("api/v1", "nodes") or {}).get("items", ()))
        except ClusterError as error:
            if error.status == HTTPStatus.FORBIDDEN:  # a right that Refit can do without
                return frozenset()
            raise

    def prepare(self, session: Session) -> None:
        """Let a generation have its place before anybody is stopped, if its session runs: a slot with its image, unless
        it is warmed there, or another Pod, if its session has to leave its node or gets other GPUs.

        Raises:
            ClusterError: no node takes it, or its image doesn't begin there.
        """
        closed = self.closed()
        if session.late_home and not (closed or session.devices):
            return
        self.vacate(session.name)
        pods = [pod for pod in self.pods(session.name) if not (pod.ending or pod.over)]
        if any(slot.opened == session.generation for pod in pods for slot in pod.slots):
            return
        leaves = bool(pods) and all(pod.node in closed for pod in pods)
        if leaves or _gets_devices(session, pods):
            self._prepare_pod(session, leaves)
        elif not session.late_home:
            prepare = partial(self._prepare_slot, session)
            retry(prepare, Conflict, attempts=_CONFLICTS, pause=_CONFLICT_PAUSE_SECONDS)

    def _prepare_slot(self, session: Session) -> None:
        """Bring the image of a generation into the slot that it will get when it starts, beside the one that runs.

        Kubelet needs seconds to replace a container.

        Raises:
            ClusterError: the image doesn't begin there.
        """
        place = self._find_place(session, self.pods(session.name))
        if place is None or place[0].idle or place[1].image == session.image:
            return
        pod, slot = place[0], place[1].name
        begin = partial(self._give_slot, pod, slot, session, None, None)
        waits = partial(self._wait_runs, pod.name, slot, session)
        try:
            waits(begin)
        except NeverBegins:
            retry(waits, NeverBegins, seconds=SETTLE_SECONDS, pause=SETTLE_PAUSE_SECONDS)

    def _prepare_pod(self, session: Session, leaves: bool) -> None:
        """Let a generation have a Pod of its own on a node, with its image there.

        Raises:
            ClusterError: no node takes it.
        """
        name = self._make(session)
        try:
            self._cluster.wait("pods", name, _has_node, _SCHEDULED_SECONDS, f"No node takes {name}")
        except StillWaiting as error:
            why = self._why(session, name) or error.what
            self.end(name)
            raise ClusterError(
                f"No {'other ' if leaves else ''}node takes the session {session.name}.",
                why=why,
                hint="add a node, or make room on one; it runs on as it is.",
            ) from None
        (node,) = {pod.node for pod in self.pods(session.name) if pod.name == name}
        pull_to(self._cluster, node, session.image)

    def vacate(self, session: str) -> None:
        """End the Pods of a session on nodes that were closed, if nothing runs in them."""
        closed = self.closed()
        for pod in self.pods(session) if closed else ():
            if pod.node in closed and pod.idle and not pod.ending:
                self.end(pod.name)

    def give_back(self, session: str) -> tuple[str, ...]:
        """End the Pods of a session that have devices, if nothing runs in them; returns what others can have now."""
        pods = [pod for pod in self.seen_now(session) if pod.keeps_devices]
        for pod in pods:
            self.end(pod.name)
        return tuple(name for pod in pods for name, _ in pod.devices)

    def _make(self, session: Session) -> str:
        """Make a Pod for a generation; returns its name, which no other Pod of its session has."""
        self._templates.ensure(session)
        name, taken = session.container, {pod.name for pod in self.pods(session.name)}
        while name in taken:
            name = f"{name}-more"
        manifest = manifests.pod(session, self._options, self._script)
        self._cluster.ensure("pods", {**manifest, "metadata": {**manifest["metadata"], "name": name}})
        self._require_claim(name, session)
        return name

    def _require_claim(self, name: str, session: Session) -> None:
        """End the Pod of a session with devices of a class, if it was kept without its claim: an API server drops what
        it doesn't know.

        Raises:
            ClusterError: it was.
        """
        if resources.wanted_class(session) is None:
            return
        told = self._cluster.find("pods", name)
        if told is None or _has_claim(session, records.pod(told)):
            return
        self.end(name)
        raise ClusterError(
            "The cluster gives no GPUs to Pods by claims.",
            why=f"Its API server has kept the Pod {name} without its claim, or a webhook has taken that from a slot.",
            hint="let an administrator of it turn the feature gate DynamicResourceAllocation on, and webhooks keep "
            "`resources.claims` of containers; without "
            "`kubernetes.gpu_device_class`, GPUs are those of a device plugin (`kubernetes.gpu_resource`).",
        )

    def end(self, name: str) -> None:
        """End a Pod, and wait until it is gone."""
        self._cluster.delete("pods", name, grace=1)
        self._cluster.wait("pods", name, lambda pod: pod is None, _END_SECONDS, f"{name} doesn't end")

    def _shape(self, session: Session) -> str:
        return manifests.shape(session, self._options, self._script)


def _has_claim(session: Session, pod: SessionPod) -> bool:
    """Whether a Pod claims the devices of a session, if that has any of a class."""
    claim = resources.wanted_class(session)
    return claim is None or claim in pod.devices


def _waiting_in_vain(session: Session, pods: Collection[SessionPod]) -> list[SessionPod]:
    """The Pods that have no node, if another one of their session has devices that nothing uses: they may be those
    which a Pod waits for, and its place is in the one that has them.
    """
    keeps = any(pod.keeps_devices and pod.node and not pod.over for pod in pods)
    return [pod for pod in pods if keeps and pod.claim == session.home and not (pod.node or pod.ending)]


def _gets_devices(session: Session, pods: Collection[SessionPod]) -> bool:
    """Whether a session that runs gets devices which none of its Pods has, whatever a webhook has added to these."""
    devices, runs = resources.devices(session).items(), any(not pod.idle for pod in pods)
    return bool(devices) and runs and not any(devices <= set(pod.devices) for pod in pods)


def _has_node(told: Mapping[str, Any] | None) -> bool:
    return bool(told and told["spec"].get("nodeName"))


def _has_image(slot: str, session: Session, told: Mapping[str, Any] | None) -> bool:
    """Whether a slot runs the image of a generation.

    Raises:
        ClusterError: it never will.
    """
    if told is None:
        return False
    pod = records.pod(told)
    seen = next(each for each in pod.slots if each.name == slot)
    # Until kubelet has seen that a slot has another image, it tells how the one before has ended.
    of_another = seen.trouble.startswith(records.ENDS_AGAIN) and seen.tried != session.image
    if seen.trouble and not of_another:
        raise never_runs(
            f"The Pod of {session.name} can't run.", seen.trouble, hint=f"see `kubectl describe pod {pod.name}`."
        )
    return bool(seen.container) and seen.image == session.image
