"""The NetworkPolicy that keeps sessions apart: nobody reaches their Pods but Refit and its gateway.

The cluster's network has to enforce it; not each one does.
"""

from __future__ import annotations

from typing import Any

from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.kinds import POLICIES
from flows.sessions.kubernetes.manifests import KIND, ClusterOptions

NAME = "refit-sessions"
# The Pods that are kept apart, and the label of Refit's own, which it has by `deploy/`.
APART = ("session", "trial", "pull", "home")
REFIT = {"app.kubernetes.io/name": "refit"}


def policy(options: ClusterOptions) -> dict[str, Any] | None:
    """The policy for the Pods of all sessions; none: nobody has said from where the gateway comes. Pure.

    Kubelet reaches its own Pods in any case, and through it the API server's `exec`.
    """
    if not (options.gateways or options.inside):
        return None
    own: dict[str, Any] = {"podSelector": {"matchLabels": REFIT}}
    outside = [{"ipBlock": {"cidr": cidr}} for cidr in options.gateways]
    spec = {
        "podSelector": {"matchExpressions": [{"key": KIND, "operator": "In", "values": list(APART)}]},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own, *outside]}],
    }
    metadata = {"name": NAME, "namespace": options.namespace, "labels": {KIND: "policy"}}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


class Isolation:
    """Keeps the sessions of one namespace apart."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is asked of the cluster yet."""
        self._cluster, self._done = cluster, False

    def ensure(self) -> None:
        """Let the policy be there, as the settings say, before the Pod that it is for; once.

        Raises:
            ClusterError: the right to make it is missing, for instance: then no session is made that isn't kept apart.
        """
        if self._done:
            return
        if asked := policy(self._cluster.options):
            there = self._cluster.find(POLICIES, NAME)
            if there is None:
                self._cluster.ensure(POLICIES, asked)
            elif there["spec"] != asked["spec"]:
                self._cluster.patch(POLICIES, NAME, {"spec": asked["spec"]}, "merge")
        self._done = True
