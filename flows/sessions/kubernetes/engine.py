"""Sessions as Pods: implements `engine.Engine`; records and annotations say what each is and how to make it anew."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from flows.core import fence
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.programs.command import FOREIGN_OUTPUT
from flows.core.threads import share_memory
from flows.sessions.kubernetes import manifests, records
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, ClusterOptions
from flows.sessions.kubernetes.isolation import Isolation
from flows.sessions.kubernetes.manifests import KIND, OPENED, PLACED, SESSION, STARTED, entered
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.kubernetes.programs import output_of, talk
from flows.sessions.kubernetes.pulls import Pulls
from flows.sessions.kubernetes.records import SessionPod, Slot
from flows.sessions.kubernetes.slots import Slots
from flows.sessions.kubernetes.sshd import SlotSshd
from flows.sessions.model import Container, Running, Session, session_of

logger = logging.getLogger("refit.sessions")


class SessionRoutes(Protocol):
    """The way in to sessions, which alone leads to Pods: the gateway."""

    def route_to_waiting_page(self, session: str) -> str:
        """Lead whoever comes to the waiting page; returns where they were led."""

    def route(self, session: str, target: str) -> None:
        """Lead whoever comes to what answers at this URL."""


class Kubernetes:
    """Implements `engine.Engine` in one namespace of a cluster."""

    on_this_machine = False
    # Each move is a few calls and waits for kubelets; the API server takes hundreds at a time.
    at_once = 32

    def __init__(
        self,
        options: ClusterOptions,
        configuration: Callable[[str], Mapping[str, Any]],
        gateway: SessionRoutes,
        ssh_folder: Callable[[str], Path],
    ) -> None:
        """Nothing is asked of the cluster yet.

        Args:
            options: where and how sessions run.
            configuration: digest of an image → its configuration; raises RefitError if there is none.
            gateway: the way in to sessions.
            ssh_folder: name of a session → the folder, here, with what its sshd reads.
        """
        share_memory()  # hundreds of moves have a thread and TLS each
        self._options, self._configuration, self._gateway = options, configuration, gateway
        self._cluster = Cluster(options)
        self._placement, self._isolation = Placement(self._cluster, options), Isolation(self._cluster)
        self._slots = Slots(self._cluster, self._placement)
        self.sshd = SlotSshd(self._cluster, self._placement, self._slots, self._isolation, ssh_folder)
        self._pulls = Pulls(self._cluster, lambda: {pod.node for pod in self._placement.pods() if pod.node})

    def containers(self, session: str = "", pods: Sequence[SessionPod] = ()) -> tuple[Container, ...]:
        """All generations that Refit made, or those of one session, lowest generation first.

        `pods`: its Pods, as they were just told.
        """
        return records.containers(self._records(session), pods or self._placement.pods(session))

    def _records(self, session: str = "") -> Sequence[Mapping[str, Any]]:
        """The records of all generations, or of those of one session, as the API server has them."""
        if not session:
            return self._cluster.list("configmaps", **{SESSION: session, KIND: "record"})
        return self._cluster.of_session("configmaps", session, "record", dict)

    def pull(self, image: str) -> None:
        """Bring the image with this digest to every node on which sessions run.

        Raises:
            RefitError: the registry has no such image, or a node can't pull it.
        """
        self._configuration(image)
        self._pulls.pull(image)

    def create(self, session: Session) -> Container:
        """Write down what this generation is made from; nothing of it runs yet.

        If its session runs, its image comes into a slot before anybody is stopped. A session that has to leave its node
        gets a Pod on another one.

        Raises:
            RefitError: there is one of that name, made otherwise; its image can't be had; no other node takes it.
        """
        self._configuration(session.image)
        self._isolation.ensure()
        ran = session.name in records.ran(self._records(session.name))
        self._cluster.ensure("configmaps", manifests.record(session, self._options, ran=ran))
        made = self._find(session.container)
        if made is None or made.made_from != session:
            raise RefitError(
                f"There is a record {session.container!r} already, made with other options.",
                hint=f"look at it (`kubectl get configmap {session.container}`); if nobody needs it, remove it.",
            )
        self._placement.prepare(session)
        return made

    def _find(self, container: str) -> Container | None:
        made = self.containers(session_of(container))
        return next((each for each in made if each.name == container), None)

    def start(self, container: str) -> None:
        """Start a generation in a slot of its session's Pod, which is made if need be.

        Raises:
            RefitError: another generation may write into that home.
        """
        name = session_of(container)
        own = self._records(name)
        mine, others = self._mine_and_others(container, records.containers(own, self._placement.seen_now(name)))
        session = _made_from(mine)
        if mine.running is Running.running and not mine.warm and self._slots.has_begun(*self._running(container)):
            return
        _check_home(session, others)
        if not (mine.warm and self._slots.let_home_in(session, *self._running(container))):
            self._begin(session, "start")
        if not any(each["metadata"]["name"] == container and records.has_run(each) for each in own):
            self._note(container, STARTED)

    def _mine_and_others(self, container: str, made: Sequence[Container] = ()) -> tuple[Container, list[Container]]:
        made = made or self.containers(session_of(container))
        mine = next((each for each in made if each.name == container), None)
        if mine is None:
            raise RefitError(
                f"There is no container {container!r}.", hint="`refit session list` shows the sessions that are there."
            )
        return mine, [each for each in made if each.name != container]

    def binds_late(self) -> bool:
        """Whether a home can come into a generation that runs already: a slot leads it there."""
        return True

    def has_place(self, session: Session) -> bool:
        """Whether a Pod on a node has a slot for a generation: it was made as that needs it, and claims its devices."""
        return self._placement.has_place(session)

    def warm(self, session: Session, wait: bool = True) -> None:
        """Start a generation beside the one that runs, up to where it needs its home.

        If so wished, this waits until it waits for nothing but that; else it gets its home when it is so far.

        Raises:
            RefitError: it has ended, or its Pod has no slot for it.
        """
        self._begin(session, "warm", wait)

    def favour(self, container: str, favoured: bool) -> None:
        """Nothing: a Pod's request for cores is fixed when it is made."""

    def stop(self, container: str, grace: float, settle: bool = True) -> None:
        """SIGTERM to every process of a generation, up to `grace` seconds, then SIGKILL; the slot stays."""
        for pod, slot in self._opened(container):
            if pod.ending:
                self._placement.await_end(pod)
                continue
            self._slots.stop(pod, slot, grace)

    def _opened(self, container: str) -> list[tuple[SessionPod, Slot]]:
        """The slots in which a generation runs."""
        pods = self._placement.pods(session_of(container))
        slots = [(pod, slot) for pod in pods for slot in pod.slots if slot.opened]
        return [(pod, slot) for pod, slot in slots if container == f"refit-{pod.session}-{slot.opened}"]

    def childless(self, container: str) -> bool:
        """Whether the main program of a running generation has started nothing that still runs; no: nobody knows."""
        try:
            pod, slot = self._running(container)
            self._slots.call(pod.name, slot.name, "childless")
        except ClusterError:
            return False
        return True

    def remove(self, container: str) -> None:
        """Remove a generation that doesn't run; its home stays, and its session's Pod as long as another uses it.

        Raises:
            RefitError: it runs.
        """
        mine = self._find(container)
        if mine and mine.running is Running.running and not mine.warm:
            raise RefitError(f"{container} runs, and is not removed.", hint="stop the session first.")
        if mine and mine.warm:
            self.stop(container, grace=1)
        session = session_of(container)
        left = {each.generation for each in self.containers(session) if each.name != container}
        for pod in self._placement.pods(session):
            self._release(pod, int(container.rpartition("-")[2]), left)
        if mine or self._cluster.follower.of("configmaps", session) is None:  # else nothing is there, and it is known
            self._cluster.delete("configmaps", container)

    def _release(self, pod: SessionPod, generation: int, left: Collection[int]) -> None:
        """Free the slot of a generation; a Pod that no other generation has a slot of goes, if nobody needs it."""
        # Also one whose record was removed by hand: a container that runs is never ended with another generation.
        others = any(slot.generation in left or slot.opened not in (0, generation) for slot in pod.slots)
        slot = pod.slot_of(generation)
        if not others and not (left and slot is None):
            self._placement.end(pod.name)
        # No later generation has the number of one that another has followed, so it is free without a word.
        elif slot and (slot.opened or generation > max(left, default=0)):
            self._slots.annotate(pod.name, {f"{PLACED}{slot.name}": None, f"{OPENED}{slot.name}": None})

    def address(self, container: str, port: int) -> tuple[str, int]:
        """Where this port of a running generation is reached inside the cluster's network.

        Raises:
            RefitError: it doesn't run.
        """
        pod, _ = self._running(container)
        return pod.address, port

    def _running(self, container: str) -> tuple[SessionPod, Slot]:
        for pod, slot in self._opened(container):
            return pod, slot
        raise ClusterError(f"{container} doesn't run.", hint="`refit session start` starts a session.")

    def by_hand(self, session: Session) -> tuple[str, ...]:
        """Changes by hand to a session's Pod, each in words. The API server itself is asked, unless a Pod is followed
        that is as it was made: what somebody changes later than that is seen no earlier by a question.
        """
        if self._is_as_made(session):
            return ()
        changes: list[str] = []
        for told in self._cluster.list("pods", **{SESSION: session.name, KIND: "session"}):
            pod = records.pod(told)
            if (slot := pod.slot_of(session.generation)) and (expected := self._placement.expected(session, pod)):
                changes += manifests.changed_by_hand(told["spec"], expected, slot.name)
        return tuple(changes)

    def _is_as_made(self, session: Session) -> bool:
        """Whether the Pod of a generation is followed, and nobody has changed its specification."""
        followed: Sequence[SessionPod] = self._cluster.follower.of("pods", session.name) or ()
        with_slots = [(pod, slot) for pod in followed if (slot := pod.slot_of(session.generation))]
        reference = self._options.reference(session.image)
        return bool(with_slots) and all(
            slot.reference == reference
            and (expected := self._placement.expected(session, pod))
            and pod.fingerprint == manifests.fingerprint(expected)
            for pod, slot in with_slots
        )

    def changed_files(self, container: str) -> None:
        """None: only the node knows."""

    def execute(
        self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = FOREIGN_OUTPUT
    ) -> str:
        """Run a program beside a running generation, as its user; returns its standard output."""
        pod, slot = self._running(container)
        return output_of(self._cluster, pod.name, slot.name, entered(slot.name, argv), stdin, limit=limit, most=most)

    @contextmanager
    def dialogue(self, container: str, argv: Sequence[str], limit: float = 600.0) -> Iterator[Callable[[str], str]]:
        """Let a program beside a running generation answer lines with lines, as its user, `limit` seconds at most."""
        pod, slot = self._running(container)
        with talk(self._cluster, pod.name, slot.name, entered(slot.name, argv), limit) as ask:
            yield ask

    def block_ingress(self, container: str, ports: Sequence[int]) -> Callable[[], None]:
        """Let nobody new in through the gateway, which alone leads to Pods; returns what undoes it at once.

        Raises:
            RefitError: the generation doesn't run.
        """
        self._running(container)
        session = session_of(container)
        target = self._gateway.route_to_waiting_page(session)
        return partial(self._gateway.route, session, target) if target else lambda: None

    def allow_ingress(self, container: str) -> None:
        """Undo every `block_ingress` of a running generation.

        Raises:
            RefitError: it doesn't run.
        """
        pod, slot = self._running(container)
        made = _made_from(self._mine_and_others(f"refit-{pod.session}-{slot.opened}")[0])
        if made.access.port:
            self._gateway.route(made.name, f"http://{pod.address}:{made.access.port}")

    def attach(self, container: str, argv: Sequence[str], terminal: bool) -> NoReturn:
        """Let this process become a program beside a running generation, by kubectl.

        Raises:
            RefitError: the generation doesn't run, or there is no kubectl.
        """
        pod, slot = self._running(container)
        if (kubectl := shutil.which("kubectl")) is None:
            raise RefitError("There is no kubectl here, which connects a terminal to a Pod.", hint="install kubectl.")
        options = ["--namespace", self._options.namespace, "--container", slot.name, "--stdin"]
        options += ["--context", self._options.context] if self._options.context else []
        fence.check()
        os.execv(
            kubectl,
            ["kubectl", "exec", pod.name, *options, *(["--tty"] if terminal else []), "--", *entered(slot.name, argv)],
        )

    def logs(self, container: str, lines: int = 100) -> str:
        """The last lines that a generation's slot wrote; of a program that has ended by itself, what it left."""
        for pod in self._placement.pods(session_of(container)):
            if not pod.ending and (slot := pod.slot_of(int(container.rpartition("-")[2]))):
                now = self._cluster.logs(pod.name, slot.name, lines)
                return now or self._cluster.logs(pod.name, slot.name, lines, previous=True)
        return ""

    def _begin(self, session: Session, verb: str, wait: bool = False) -> None:
        argv = manifests.image_program(self._configuration(session.image))
        self._slots.begin(session, manifests.program(session, argv).encode(), verb, wait)

    def _note(self, container: str, key: str) -> None:
        """Write down when a generation was started or has ended."""
        moment = now().isoformat()
        self._cluster.patch("configmaps", container, {"metadata": {"annotations": {key: moment}}}, "merge")


def _made_from(container: Container) -> Session:
    if container.made_from is None:
        raise RefitError(
            f"The record of {container.name} was written by another version of Refit.",
            hint="start it with that version, or remove the session and make it anew; its home stays.",
        )
    return container.made_from


def _check_home(session: Session, others: Sequence[Container]) -> None:
    for other in others:
        runs = other.running is Running.running and not other.warm
        if runs and (other.made_from is None or other.made_from.home == session.home):
            raise RefitError(
                f"The home of {session.name} is in use.",
                why=f"{other.name} runs with it.",
                hint=f"stop {other.name} first: `refit session stop {other.name}`.",
            )


__all__ = ["Kubernetes", "SessionRoutes"]
