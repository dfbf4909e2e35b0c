"""The NetworkPolicies that keep sessions apart: nobody reaches their Pods but Refit and its gateway, and trials reach
nobody.

The cluster's network has to enforce them; not each one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.kinds import POLICIES
from flows.sessions.kubernetes.manifests import KIND, ClusterOptions

NAME, OF_TRIALS = "refit-sessions", "refit-trials"
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
    return _policy(NAME, spec, options)


def of_trials(options: ClusterOptions) -> dict[str, Any]:
    """The policy by which trials have no network, as on one machine; Refit runs its looks inside of them. Pure."""
    spec = {"podSelector": {"matchLabels": {KIND: "trial"}}, "policyTypes": ["Egress"], "egress": []}
    return _policy(OF_TRIALS, spec, options)


def _policy(name: str, spec: Mapping[str, Any], options: ClusterOptions) -> dict[str, Any]:
    metadata = {"name": name, "namespace": options.namespace, "labels": {KIND: "policy"}}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


class Isolation:
    """Keeps the sessions of one namespace apart."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is asked of the cluster yet."""
        self._cluster, self._done = cluster, False

    def ensure(self) -> None:
        """Let the policies be there, as the settings say, before the Pods that they are for; once.

        Raises:
            ClusterError: the right to make it is missing, for instance: then no session is made that isn't kept apart.
        """
        if self._done:
            return
        if asked := policy(self._cluster.options):
            for each in (asked, of_trials(self._cluster.options)):
                self._ensure(each)
        self._done = True

    def _ensure(self, asked: Mapping[str, Any]) -> None:
        name = asked["metadata"]["name"]
        there = self._cluster.find(POLICIES, name)
        if there is None:
            self._cluster.ensure(POLICIES, asked)
        elif {"egress": [], **there["spec"]} != {"egress": [], **asked["spec"]}:  # the API server drops an empty list
            self._cluster.patch(POLICIES, name, {"spec": asked["spec"]}, "merge")
