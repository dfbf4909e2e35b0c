"""Trials in a cluster: a Pod of a session's next image on the session's node, with a copy of the home or an empty one.

The home itself stays out of it: its claim has one writer. The Pod and the copies bear a name of their own, which is
locked for as long as its process lives: two trials of one session don't meet. The next trial removes what a killed one
has left, and Kubernetes ends a Pod that nobody removes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from flows.core import fence
from flows.core.errors import RefitError
from flows.core.file_locks import if_alone
from flows.core.settings import Settings
from flows.core.waiting import retry
from flows.sessions.homes.space_reservation import NoRoom
from flows.sessions.kubernetes import ownership, records, rehearsal_budget, trial_pods
from flows.sessions.kubernetes.cluster import Cluster, StillWaiting
from flows.sessions.kubernetes.home_snapshots import ClusterSnapshots
from flows.sessions.kubernetes.isolation import Isolation
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.kubernetes.programs import output_of
from flows.sessions.kubernetes.refusals import SETTLE_PAUSE_SECONDS, SETTLE_SECONDS, ClusterError, NeverBegins
from flows.sessions.kubernetes.trial_pods import TERMS, TRIAL, PodTerms
from flows.sessions.model import Session
from flows.sessions.packages.model import Outcome
from flows.sessions.trial import MOST_OUTPUT, QUICK, NoTrial, lock, named, names

LAST_LINES = 15


class ClusterTrials:
    """Implements `trial.Trials` in one namespace of a cluster."""

    def __init__(
        self,
        settings: Settings,
        configuration: Callable[[str], Mapping[str, Any]],
        *,
        copies: bool = True,
        terms: PodTerms | None = None,
    ) -> None:
        """Nothing is asked of the cluster yet.

        Args:
            settings: those in force.
            configuration: as for `engine.Kubernetes`.
            copies: whether trials have a copy of the session's home, where there are any.
            terms: how long their Pods are waited for and may live.
        """
        self._terms = terms or TERMS
        self._settings, self._configuration = settings, configuration
        self._options = ownership.options(settings)
        self._cluster = Cluster(self._options)
        self._snapshots, self._isolation = ClusterSnapshots(self._cluster), Isolation(self._cluster)
        self._copies = copies and self._snapshots.keeps
        self.with_home = self._copies

    @contextmanager
    def begin(self, session: Session) -> Iterator[ClusterTrial]:
        """A Pod for a session's next image, which is gone when the `with` block is left.

        Raises:
            NoTrial: the copy of the home takes more than it may.
            RefitError: the image can't be had.
        """
        configuration = self._configuration(session.image)
        self.sweep()
        self._isolation.ensure()
        with named(self._settings, session.name) as id:
            try:
                copy = self._copied(session, id)
                manifest = trial_pods.pod(
                    copy,
                    id,
                    self._node_of(session.name),
                    configuration,
                    self._options,
                    self._settings,
                    with_home=self.with_home,
                    terms=self._terms,
                    preferred=self._nodes_for(session.image) if self._terms.by_image else (),
                )
                yield ClusterTrial(self._cluster, manifest, self._terms.start_seconds)
            finally:
                with fence.lifted():  # nobody else's bears this name
                    self._remove(id)

    def _copied(self, session: Session, id: str) -> Session:
        """The session with copies of its home and volumes, if it is to have any just now.

        Raises:
            NoTrial: they take more than a rehearsal may have.
        """
        snapshots = self._snapshots
        self.with_home = self._copies and rehearsal_budget.take(self._cluster, session, quick=snapshots.by_storage)
        if not self.with_home:
            return session
        try:
            return snapshots.spare(session, round(self._settings.rehearsal_copy * 1e9), trial_pods.own(id))
        except NoRoom as error:
            raise NoTrial(str(error)) from error

    def _node_of(self, session: str) -> str:
        """The node on which a session is, if it may stay there; empty: any is as good."""
        placement = Placement(self._cluster, self._options)
        closed = placement.closed()
        return next((pod.node for pod in placement.pods(session) if pod.node not in closed and not pod.ending), "")

    def _nodes_for(self, image: str) -> tuple[str, ...]:
        """The nodes whose sessions have this image, those with most of them first; if none has, those with sessions."""
        placement = Placement(self._cluster, self._options)
        closed = placement.closed()
        pods = [pod for pod in placement.pods() if pod.node and pod.node not in closed and not (pod.ending or pod.over)]
        with_it = Counter(pod.node for pod in pods if any(image in (slot.image, slot.asked) for slot in pod.slots))
        return tuple(node for node, _ in (with_it or Counter(pod.node for pod in pods)).most_common())

    def sweep(self) -> tuple[str, ...]:
        """Remove what killed trials have left; returns the names of their sessions; another Refit has its own."""
        leftovers = []
        for id in sorted(names(self._settings)):
            with if_alone(own := lock(self._settings, id)) as alone, fence.lifted():
                if alone:
                    if self._remove(id):
                        leftovers.append(id.partition(".")[0])
                    own.unlink(missing_ok=True)
        return tuple(leftovers)

    def _remove(self, id: str) -> bool:
        """Remove the Pod of a trial and its copies; returns whether there was anything."""
        pod = trial_pods.name(id)
        if had_pod := self._cluster.find("pods", pod) is not None:
            self._cluster.delete("pods", pod, grace=0)
        return self._snapshots.forget_spare(trial_pods.own(id)) or had_pod


class ClusterTrial:
    """Implements `trial.Trial` by a Pod with one container."""

    def __init__(self, cluster: Cluster, manifest: Mapping[str, Any], start_seconds: float = 0.0) -> None:
        """A trial that isn't begun with; its Pod has so many seconds to start, or as many as a session if 0."""
        self._cluster, self._manifest = cluster, manifest
        self._start_seconds = start_seconds
        self._name = manifest["metadata"]["name"]

    def install(self, packages: Sequence[str]) -> Outcome:
        """Nothing: sessions on Kubernetes have no packages of their own."""
        return Outcome(missing=dict.fromkeys(packages, "sessions on Kubernetes can't have it yet"))

    def start(self) -> None:
        """Let the Pod be made, and wait until it runs.

        Raises:
            NoTrial: no node takes it in time.
            ClusterError: the image can't be pulled or started there.
        """
        seconds = self._start_seconds or self._cluster.options.start_seconds
        self._cluster.create("pods", self._manifest)
        told = f"{self._name} doesn't run"
        begins = partial(self._cluster.wait, "pods", self._name, trial_pods.has_begun, seconds, told)
        try:
            retry(begins, NeverBegins, seconds=SETTLE_SECONDS, pause=SETTLE_PAUSE_SECONDS)
        except StillWaiting as error:
            raise NoTrial(records.waits_for(self._cluster.find("pods", self._name) or {}) or error.what) from error

    def address(self) -> str:
        """The address of its Pod.

        Raises:
            ClusterError: it has none, as it is gone, for instance.
        """
        told = self._cluster.find("pods", self._name) or {}
        if address := (told.get("status") or {}).get("podIP"):
            return str(address)
        raise ClusterError(f"The Pod {self._name} has no address.", why=trial_pods.end_of(told or None))

    def execute(self, argv: Sequence[str], stdin: str = "", limit: float = QUICK, most: int = MOST_OUTPUT) -> str:
        """Run a program in it, as the session's user, for so many seconds and bytes of output at most; returns that."""
        return output_of(self._cluster, self._name, TRIAL, argv, stdin, limit=limit, most=most)

    def ended(self) -> str:
        """Why it doesn't run any more; empty: it does."""
        return trial_pods.end_of(self._cluster.find("pods", self._name))

    def last_words(self) -> str:
        """The last lines that it wrote; empty: nobody can tell."""
        try:
            return self._cluster.logs(self._name, TRIAL, LAST_LINES)
        except RefitError:  # its Pod is gone, and says why elsewhere
            return ""
