"""Calls of the program of slots in the Pods of sessions, and the annotations by which Pods say what came of them."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from flows.core import fence
from flows.core.database import now
from flows.core.programs.command import FOREIGN_OUTPUT
from flows.core.waiting import retry
from flows.sessions.kubernetes import records
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, ProgramEnded, StillWaiting
from flows.sessions.kubernetes.manifests import OPENED
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.kubernetes.records import SessionPod, Slot, opened
from flows.sessions.kubernetes.refusals import ClusterAway
from flows.sessions.model import Session

_SLOT = ("/bin/sh", "/run/refit/bin/slot")
_QUICK = 60.0
_REPEATED = 3
_REFUSED = 75  # EX_TEMPFAIL of sysexits.h, by which the program of a slot says that it doesn't
_KILLED = 128 + signal.SIGKILL  # the code of a call in a container that has ended meanwhile
# Seconds in which kubelet tells the API server that a container has ended.
_KUBELET_SECONDS = 10.0


class Slots:
    """Calls the program of slots; each of its verbs can be repeated, as where the connection was lost."""

    def __init__(self, cluster: Cluster, placement: Placement) -> None:
        self._cluster, self._placement = cluster, placement

    def begin(self, session: Session, program: bytes, verb: str, wait: bool) -> None:
        """Let the program of a generation begin in a slot, with its home or without.

        Args:
            session: the generation.
            program: the script that the slot runs.
            verb: of the program of slots: `start`, or `warm`, without the home.
            wait: until it waits for its home.

        Raises:
            ClusterError: it can't; also if the container of the slot is replaced again and again.
        """
        birth, late = "ask", verb == "warm"
        for _ in range(_REPEATED):
            pod, slot = self._placement.place(session, opened(session.generation, late=True) if late else None)
            # Once the API server has told of the end of its program, the container that it tells of came after that.
            birth = "sure" if slot.had else birth
            # The annotation comes first: `stop` puts right its word on a slot in which nothing has begun yet.
            if not (late and slot.late and slot.opened == session.generation):
                told = opened(session.generation, slot.container, late=late, started=None if late else now())
                self.annotate(pod.name, {f"{OPENED}{slot.name}": told})
            words = ["run-next", str(len(program)), verb, str(session.generation), str(fence.number()), birth]
            words += ["wait"] if wait else []
            # One that was here before may have ended itself just now.
            may_end = not late and slot.last != session.generation
            answer = self._run_next(pod, slot, words, program, may_end)
            if answer == "":
                return
            birth = answer or birth
            # Nothing has begun: kubelet puts another container in the place of one that has ended, or did so seconds
            # ago. A program that begins there must be known as that of this container, not of the one before it.
            with suppress(StillWaiting):
                self._await_end_of(pod.name, slot)
        raise ClusterError(
            f"The container {slot.name} of {pod.name} ends again and again.",
            hint=f"see `kubectl describe pod {pod.name}`, and try again.",
        )

    def _run_next(self, pod: SessionPod, slot: Slot, words: Sequence[str], program: bytes, may_end: bool) -> str | None:
        """Let a program begin in the container of a slot.

        Returns the empty text if it has. It hasn't where kubelet has only just put the container there: then this is
        what the container says of its start. None: there is no container just now.

        Raises:
            ProgramEnded: it can't begin, or, unless it may end, has ended with its container.
        """
        try:
            limit = _QUICK * (1 + (words[-1] == "wait"))
            return self.call(pod.name, slot.name, *words, stdin=program, limit=limit).decode().strip()
        except ProgramEnded as error:
            if may_end and self._has_ended_with(error, pod.name, slot):
                return ""  # as far as anybody knows: its logs say why it has ended
            if error.code >= 0:
                raise
            return None

    def has_begun(self, pod: SessionPod, slot: Slot) -> bool:
        """Whether the program that counts as running in a slot does; a Refit may have been killed before it began."""
        try:
            return self.call(pod.name, slot.name, "state").decode().strip() == str(slot.opened)
        except ProgramEnded as error:
            if error.code >= 0 and not self._has_ended_with(error, pod.name, slot):
                raise
            with suppress(StillWaiting):  # its container has ended, as kubelet says a bit later
                self._await_end_of(pod.name, slot)
            return False

    def let_home_in(self, session: Session, pod: SessionPod, slot: Slot) -> bool:
        """Let the home into a slot in which its generation waits for it; no: it doesn't, or not any more."""
        try:
            self.call(pod.name, slot.name, "open", str(session.generation), str(fence.number()))
        except ProgramEnded as error:
            if error.code == _REFUSED:
                # It may have ended a moment ago: the next process must be known as that of the container to come.
                with suppress(StillWaiting):
                    self._await_end_of(pod.name, slot)
                return False
            if not self._has_ended_with(error, pod.name, slot):
                raise
        self.annotate(pod.name, {f"{OPENED}{slot.name}": opened(session.generation, slot.container, started=now())})
        return True

    def stop(self, pod: SessionPod, slot: Slot, grace: float) -> None:
        """SIGTERM to all that runs in a slot, and SIGKILL after so many seconds.

        Raises:
            ClusterError: it doesn't end.
        """
        try:
            limit, seconds = grace + _QUICK, max(1, round(grace))
            self.call(pod.name, slot.name, "stop", str(seconds), str(fence.number()), limit=limit)
        except ClusterError as error:
            try:  # unless its container has ended by itself, as kubelet says a bit later
                self._await_end_of(pod.name, slot)
            except StillWaiting:
                raise error from None
        told = None if slot.late else opened(slot.last, slot.container, started=slot.started, ended=now())
        left = self.annotate(pod.name, {f"{OPENED}{slot.name}": told})
        if told:
            self._cluster.follower.changed("pods", left)

    def _has_ended_with(self, error: ProgramEnded, pod: str, slot: Slot) -> bool:
        """Whether a call was killed because the container has ended, as where a program ends as soon as it begins."""
        if error.code != _KILLED or not slot.container:
            return False
        try:
            self._await_end_of(pod, slot)
        except StillWaiting:
            return False
        return True

    def _await_end_of(self, pod: str, slot: Slot) -> None:
        """Wait for kubelet to say that a slot's container has ended.

        Raises:
            StillWaiting: it doesn't.
        """

        def has_ended(told: Mapping[str, Any] | None) -> bool:
            return told is None or slot.container not in {other.container for other in records.pod(told).slots}

        self._cluster.wait("pods", pod, has_ended, _KUBELET_SECONDS, f"{pod} doesn't end")

    def call(self, pod: str, slot: str, *words: str, stdin: bytes = b"", limit: float = _QUICK) -> bytes:
        """Call the program of a slot; returns its standard output.

        Raises:
            ClusterError: it refuses, or took longer than `limit` seconds.
        """
        call = partial(self._execute, pod, slot, [*_SLOT, *words], stdin, limit)
        return retry(call, ClusterAway, attempts=_REPEATED, pause=1.0)

    def _execute(self, pod: str, slot: str, argv: Sequence[str], stdin: bytes, limit: float) -> bytes:
        with self._cluster.program(pod, slot, argv, stdin) as program:
            return b"".join(program.output(limit, FOREIGN_OUTPUT))

    def annotate(self, pod: str, annotations: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Change annotations of a Pod, or remove them; returns the Pod."""
        return self._cluster.patch("pods", pod, {"metadata": {"annotations": dict(annotations)}}, "merge")
