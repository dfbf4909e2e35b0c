"""A pull that shows whether nodes get images: by a Pod whose node asks the registry, also where it has the image."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flows.core.database import now
from flows.core.formatting import on_a_line
from flows.sessions.kubernetes import manifests, records
from flows.sessions.kubernetes.cluster import Cluster, StillWaiting
from flows.sessions.kubernetes.manifests import KIND, LABEL, ClusterOptions
from flows.sessions.kubernetes.pulls import NOT_PULLED
from flows.sessions.kubernetes.trial_pods import rather_on

TRIAL = f"{LABEL}pull-trial"
# Kubernetes ends a Pod that a killed process has left; the next trial removes it.
_DEADLINE_SECONDS = 300
_LEFT_OVER = timedelta(hours=1)


@dataclass(frozen=True)
class PullTrial:
    """How far the Pod of a trial came.

    Attributes:
        node: on which it is; empty: none takes it.
        has_image: whether that node has got the image.
        trouble: why it can't get it, or why no node takes the Pod, in Kubernetes' words; empty: nothing is known yet.
        seconds: for which it was followed.
    """

    node: str
    has_image: bool
    trouble: str
    seconds: float = 0.0

    @property
    def settled(self) -> bool:
        """Whether to go on waiting tells no more: a node that comes later may take a Pod that none takes now."""
        return self.has_image or bool(self.node and self.trouble)


def pod(image: str, nodes: Sequence[str], options: ClusterOptions, id: str) -> dict[str, Any]:
    """The Pod of a trial, which goes to a node on which sessions may run. Pure.

    Args:
        image: the digest of an image.
        nodes: those that are better than others: they have the image already, so that a pull takes no time.
        options: where sessions run.
        id: the part of its name that no other trial has.
    """
    made = manifests.puller(image, "", options)
    made["metadata"] = {**made["metadata"], "name": f"refit-pull-{id}", "labels": {KIND: "pull", TRIAL: "true"}}
    spec = made["spec"]
    del spec["nodeName"]
    (container,) = spec["containers"]
    container["imagePullPolicy"] = "Always"
    spec["activeDeadlineSeconds"] = _DEADLINE_SECONDS
    if nodes:
        spec["affinity"] = rather_on(nodes)
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in options.tolerations]
    return made


def look(told: Mapping[str, Any] | None) -> PullTrial:
    """How far a Pod came, by what the API server tells of it. Pure."""
    if told is None:
        return PullTrial("", has_image=False, trouble="")
    node, status = told["spec"].get("nodeName", ""), told.get("status") or {}
    for seen in status.get("containerStatuses") or ():
        state = seen.get("state") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") in NOT_PULLED:
            return PullTrial(node, has_image=False, trouble=f"{waiting['reason']}: {waiting.get('message', '')}")
        if "running" in state or "terminated" in state or records.trouble(state):
            return PullTrial(node, has_image=True, trouble="")  # one that can't be begun is there
    if status.get("phase") == "Failed":
        why = f"{status.get('reason', '')}: {status.get('message', '')}"
        return PullTrial(node, has_image=False, trouble=why)
    return PullTrial(node, has_image=False, trouble="" if node else records.waits_for(told))


def try_pull(cluster: Cluster, image: str, nodes: Sequence[str], seconds: float) -> PullTrial:
    """Let a node ask the registry for an image.

    Args:
        cluster: where sessions run.
        image: the digest of an image.
        nodes: those that have it already.
        seconds: for which the Pod is followed at most; the node may go on with the download afterwards.

    Raises:
        ClusterError: the cluster doesn't take the Pod, or doesn't answer.
    """
    _remove_left_over(cluster)
    manifest = pod(image, nodes, cluster.options, secrets.token_hex(8))
    name, began, last = manifest["metadata"]["name"], time.monotonic(), PullTrial("", has_image=False, trouble="")

    def is_over(told: Mapping[str, Any] | None) -> bool:
        nonlocal last
        if told is None:  # somebody else has removed it
            return True
        last = look(told)
        return last.settled

    cluster.create("pods", manifest)
    try:
        with suppress(StillWaiting):
            cluster.wait("pods", name, is_over, seconds, f"{name} isn't over")
    finally:
        cluster.delete("pods", name, grace=0)
    return PullTrial(last.node, last.has_image, on_a_line(last.trouble), time.monotonic() - began)


def _remove_left_over(cluster: Cluster) -> None:
    """Remove the Pods of trials that were killed."""
    for told in cluster.list("pods", **{TRIAL: ""}):
        phase, made = (told.get("status") or {}).get("phase"), told["metadata"].get("creationTimestamp", "")
        has_ended = phase in ("Succeeded", "Failed")
        if has_ended or (made and now() - datetime.fromisoformat(made) > _LEFT_OVER):
            cluster.delete("pods", told["metadata"]["name"], grace=0, uid=told["metadata"]["uid"])
