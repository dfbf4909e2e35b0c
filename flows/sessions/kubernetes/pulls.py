"""Images are brought to nodes by Pods that do nothing there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster, ClusterError

_PULL_SECONDS = 1800.0


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
        if waiting.get("reason") in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
            node = told["spec"]["nodeName"]
            raise ClusterError(f"{node} can't pull an image.", why=f"{waiting['reason']}: {waiting.get('message', '')}")
    return status.get("phase") in ("Running", "Succeeded", "Failed")
