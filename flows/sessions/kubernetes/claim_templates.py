"""Templates from which Kubernetes makes claims of Pods for devices of a class (DRA), and removes them with their Pods.

All sessions that want as many devices of the same class have the same template. It takes no device by itself, so it
stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from flows.sessions.kubernetes import resources
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, Conflict
from flows.sessions.kubernetes.kinds import TEMPLATES
from flows.sessions.kubernetes.manifests import KIND, ClusterOptions
from flows.sessions.model import Session

_EXACT = "ExactCount"


def template(device_class: str, number: str, options: ClusterOptions, version: str) -> dict[str, Any]:
    """The template of claims for so many devices of a class. Pure.

    Args:
        device_class: its name.
        number: of devices.
        options: where sessions run.
        version: of the API, e.g. `resource.k8s.io/v1`.
    """
    asked = {"deviceClassName": device_class, "allocationMode": _EXACT, "count": int(number)}
    request = {"name": resources.CLAIM, **(asked if version.endswith("/v1beta1") else {"exactly": asked})}
    name = resources.template_name(device_class, number)
    return {
        "apiVersion": version,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": options.namespace, "labels": {KIND: "gpus"}},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


class ClaimTemplates:
    """Makes such templates."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing is asked of the cluster yet."""
        self._cluster = cluster

    def ensure(self, session: Session) -> None:
        """Let the template for the devices of a session be there, if it has any of a class.

        Raises:
            NotServed: the cluster has no dynamic resource allocation.
            ClusterError: one of that name asks for something else; or the API server refuses.
        """
        if (claim := resources.wanted_class(session)) is None:
            return
        try:
            fits = self._has(claim)
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            self._cluster.forget_version(TEMPLATES)  # a server that was upgraded since may serve another one
            fits = self._has(claim)
        if not fits:
            name = resources.template_name(*claim)
            raise ClusterError(
                f"The template {name} doesn't ask for {claim[1]} of the device class {claim[0]}.",
                why="Somebody has made it otherwise, or the API server has dropped a part of it.",
                hint=f"if nobody else needs it, `kubectl --namespace {self._cluster.options.namespace} delete "
                f"resourceclaimtemplate {name}`, and try again.",
            )

    def _has(self, claim: tuple[str, str]) -> bool:
        """Whether the template for a class of devices, and how many of it, asks for them; it is made if need be."""
        asked = template(*claim, self._cluster.options, self._cluster.version(TEMPLATES))
        return bool(_asked_by(self._kept(asked)) == _asked_by(asked))

    def _kept(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """The template of that name, which is made if need be; a quota refuses one more even if it is there already."""
        name = asked["metadata"]["name"]
        if kept := self._cluster.find(TEMPLATES, name):
            return kept
        try:
            return self._cluster.create(TEMPLATES, asked)
        except Conflict as error:  # somebody has made it since
            if kept := self._cluster.find(TEMPLATES, name):
                return kept
            raise error from None


def _asked_by(told: Mapping[str, Any]) -> Any:
    """The request of claims from a template; the API server adds metadata of these claims, which say nothing of it."""
    return (told.get("spec") or {}).get("spec")


__all__ = ["ClaimTemplates", "template"]
