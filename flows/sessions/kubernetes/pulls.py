"""Images are brought to nodes by Pods that do nothing there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextvars import copy_context
from threading import Lock
from typing import Any

from cachetools import TTLCache

from flows.core.threads import at_once
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster, ClusterError

_PULL_SECONDS = 1800.0
# Reasons by which a node can't have an image, at least for now.
NOT_PULLED = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName"})
# For so long an image counts as there, or as one that can't be had: many sessions ask for it at the same time.
_THERE_SECONDS, _REMEMBERED = 60.0, 100


class Pulls:
    """Brings images to nodes, each once for all who ask at about the same time.

    Args:
        cluster: the cluster of the nodes.
        nodes: says which nodes have sessions.
    """

    def __init__(self, cluster: Cluster, nodes: Callable[[], Collection[str]]) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._lock, self._locks = Lock(), defaultdict[str, Lock](Lock)
        self._ends = TTLCache[str, ClusterError | None](_REMEMBERED, _THERE_SECONDS)

    def pull(self, image: str) -> None:
        """Bring the image with this digest to all of these nodes.

        Raises:
            ClusterError: one can't pull it.
        """
        with self._lock:
            lock = self._locks[image]
        with lock:
            if image not in self._ends:
                self._ends[image] = self._pulled(image)
            if error := self._ends[image]:
                raise error

    def _pulled(self, image: str) -> ClusterError | None:
        try:
            holder = copy_context()  # what is done in threads is done under the lease of the caller, too
            at_once(lambda node: holder.copy().run(pull_to, self._cluster, node, image), sorted(self._nodes()))
        except ClusterError as error:
            return error
        return None


def pull_to(cluster: Cluster, node: str, image: str) -> None:
    """Bring the image with this digest to a node.

    Raises:
        ClusterError: the node can't pull it, or not in time.
    """
    manifest = manifests.puller(image, node, cluster.options)
    name = manifest["metadata"]["name"]
    cluster.ensure("pods", manifest)
    try:
        cluster.wait("pods", name, _is_pulled, _PULL_SECONDS, f"{node} doesn't pull {image}")
    finally:
        cluster.delete("pods", name, grace=0)


def _is_pulled(told: Mapping[str, Any] | None) -> bool:
    if told is None:
        return False
    status = told.get("status") or {}
    for seen in status.get("containerStatuses") or ():
        waiting = seen.get("state", {}).get("waiting", {})
        if waiting.get("reason") in NOT_PULLED:
            node = told["spec"]["nodeName"]
            raise ClusterError(f"{node} can't pull an image.", why=f"{waiting['reason']}: {waiting.get('message', '')}")
    return status.get("phase") in ("Running", "Succeeded", "Failed")
