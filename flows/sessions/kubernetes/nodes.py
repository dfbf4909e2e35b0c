"""The nodes of a cluster, as far as sessions have to leave them or have lost them."""

from __future__ import annotations

from collections.abc import Mapping

from flows.sessions.kubernetes import manifests, records
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.kinds import BUDGETS
from flows.sessions.kubernetes.manifests import KIND, SESSION
from flows.sessions.kubernetes.placement import Placement


class ClusterNodes:
    """Implements `machines.Machines` in one namespace of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is asked of the cluster yet."""
        self._cluster, self._placement = cluster, Placement(cluster, cluster.options)
        self._holds = False

    def leaving(self) -> Mapping[str, str]:
        """Session → the node that it has to leave: somebody has closed it, as each drain begins."""
        closed = self._placement.closed()
        return records.leaving(self._placement.pods(), closed) if closed else {}

    def lost(self) -> frozenset[str]:
        """The sessions whose Pods are gone: evicted, deleted, or given up with their nodes.

        A Pod on a node of which nobody hears is there until Kubernetes lets go of it.
        """
        made = self._cluster.list("configmaps", **{SESSION: "", KIND: "record"})
        pods = self._placement.pods()
        return records.lost(records.containers(made, pods), pods, records.ran(made))

    def idle_gpus(self) -> frozenset[str]:
        """The sessions with a Pod that has some and in which nothing runs."""
        return frozenset(pod.session for pod in self._placement.pods() if pod.keeps_devices)

    def vacate(self, session: str) -> None:
        """End the Pods of a session on nodes that were closed, if nothing runs in them."""
        self._placement.vacate(session)

    def hold_back_evictions(self) -> None:
        """Make the budget of disruption for all sessions, once: if somebody deletes it, it stays deleted.

        Raises:
            RefitError: the right to make it is missing.
        """
        if not self._holds:
            version = self._cluster.version(BUDGETS)
            self._cluster.ensure(BUDGETS, manifests.budget(self._cluster.options, version))
            self._holds = True
