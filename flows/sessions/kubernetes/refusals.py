"""Answers of an API server that are refusals, as errors that say what to do. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.sessions.model import DoesNotBegin, EngineAway

_TAIL = 2000
# Kubernetes' reasons of a container that waits because of its image. One that can't be pulled may only be out of reach.
_OF_THE_IMAGE = ("CreateContainerError", "RunContainerError", "CrashLoopBackOff")
# So long a node has to say so while nobody waits: one that is full or slow says it of a good image for a moment.
SETTLE_SECONDS, SETTLE_PAUSE_SECONDS = 30.0, 2.0


class ClusterError(RefitError):
    """The cluster doesn't answer, or doesn't do what it was asked.

    Attributes:
        status: of HTTP; 0: there was no answer.
    """

    status = 0


class ClusterAway(ClusterError, EngineAway):
    """The cluster doesn't answer, so that nobody knows whether it did what it was asked."""


class Conflict(ClusterError):
    """Somebody else has changed the object, or made it, since it was looked at."""


class StillWaiting(ClusterError):
    """Something was waited for, and didn't happen in time."""


class NeverBegins(ClusterError, DoesNotBegin):
    """A container can't be made or begun because of its image, as where that is for another architecture."""


class NotServed(ClusterError):
    """The API server has no version of a group of its API that Refit writes."""


class Outage(Exception):
    """The API server can't be reached just now, or has too much to do; then `answer` is what it said."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.answer = answer


@dataclass(frozen=True, order=True)
class Right:
    """The right to do something with the objects of a kind, or with a part of them, in a namespace.

    Attributes:
        verb: of RBAC.
        resource: e.g. `pods`, or `pods/exec`.
        group: of the API, without its version; empty: the core.
    """

    resource: str
    verb: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


@dataclass(frozen=True)
class Answer:
    """A refusal of the API server.

    Attributes:
        status: of HTTP.
        why: its message, for people.
        kind: of the object that the refusal is about, by the API server; empty: it doesn't say.
        causes: codes that it gives for it.
    """

    status: int
    why: str
    kind: str = ""
    causes: frozenset[str] = field(default=frozenset())

    @classmethod
    def read(cls, status: int, content: bytes) -> Answer:
        """The answer with this content, whatever that is."""
        try:
            told = json.loads(content)
        except ValueError:
            told = None
        if not isinstance(told, Mapping):
            return cls(status, content[:_TAIL].decode(errors="replace"))
        details = _mapping(told.get("details"))
        causes = details.get("causes")
        codes = {str(_mapping(cause).get("reason", "")) for cause in causes} if isinstance(causes, list) else set()
        return cls(status, str(told.get("message", ""))[:_TAIL], str(details.get("kind", "")), frozenset(codes))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def no_answer(call: str, error: Exception) -> ClusterAway:
    """The error for a call that had no answer."""
    return ClusterAway(
        "The cluster doesn't answer.",
        why=f"{call}: {str(error) or type(error).__name__}",
        hint="see `kubectl cluster-info`; nothing was lost, and the same call can be made again.",
    )


def taken(namespace: str, owner: str) -> ClusterError:
    """The error for a namespace that is another Refit's; `owner` is the ConfigMap that says so."""
    return ClusterError(
        f"The namespace {namespace} has the sessions of another Refit.",
        why=f"The ConfigMap {owner} there names it; two of them would stop each other's sessions.",
        hint="let `kubernetes.namespace` name another one. If that Refit is gone for good, `kubectl --namespace "
        f"{namespace} delete configmap {owner}`, then `refit session recover`.",
    )


def refusal(answer: Answer, right: Right, namespace: str, allowed: bool | None) -> ClusterError:
    """The error for a refusal.

    Args:
        answer: the API server's answer.
        right: the right that the request needs.
        namespace: of the object.
        allowed: whether RBAC grants the right; none: nobody knows.
    """
    kind = Conflict if answer.status == HTTPStatus.CONFLICT else ClusterError
    error = kind(f"The cluster refuses to {right}.", why=answer.why, hint=_hint(answer, right, namespace, allowed))
    error.status = answer.status
    return error


def never_runs(what: str, trouble: str, hint: str = "") -> ClusterError:
    """The error for a container that waits, and will go on waiting.

    Args:
        what: doesn't run.
        trouble: why, in Kubernetes' words, a reason of its own and a colon first.
        hint: for the person who reads it.
    """
    kind = NeverBegins if trouble.partition(":")[0] in _OF_THE_IMAGE else ClusterError
    return kind(what, why=trouble, hint=hint)


def not_served(group: str, written: Sequence[str], served: Sequence[object]) -> NotServed:
    """The error for a group of the API of which the server has no version that Refit writes.

    Args:
        group: of the API.
        written: the versions that Refit writes.
        served: those that the server has.
    """
    return NotServed(
        f"The cluster has no {group} that Refit can use.",
        why=f"Its versions: {some(served) or 'none'}. Refit writes {some(written)}. Dynamic resource allocation (DRA) "
        "is there from Kubernetes 1.34 on, and in 1.32 and 1.33 where somebody has turned it on.",
        hint="without `kubernetes.gpu_device_class`, GPUs are those of a device plugin (`kubernetes.gpu_resource`).",
    )


def _hint(answer: Answer, right: Right, namespace: str, allowed: bool | None) -> str:
    if "NamespaceTerminating" in answer.causes:
        return f"the namespace {namespace} is being deleted: wait for its end, and make it again."
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return (
            "the fault is the cluster's own: a webhook that doesn't answer, for instance (`kubectl get "
            "validatingwebhookconfigurations,mutatingwebhookconfigurations`), or a kubelet."
        )
    hints: dict[int, str] = {
        HTTPStatus.UNAUTHORIZED: "the credentials have expired or are wrong: log in to the cluster again.",
        HTTPStatus.FORBIDDEN: f"let an administrator of it apply:\n{role([right], namespace)}",
        HTTPStatus.NOT_FOUND: f"see `kubectl --namespace {namespace} get {right.resource}`.",
        HTTPStatus.TOO_MANY_REQUESTS: "it has too much to do: try again in a minute.",
    }
    if answer.status == HTTPStatus.FORBIDDEN and allowed:
        return (
            "the right is there, and the cluster's own rules refuse this object: a quota (`kubectl --namespace "
            f"{namespace} describe resourcequota`), a webhook, or the namespace's level of Pod security."
        )
    if answer.status == HTTPStatus.NOT_FOUND and answer.kind == "namespaces":
        return f"`kubectl create namespace {namespace}`, or let `kubernetes.namespace` name another one."
    return hints.get(answer.status, "")


def role(rights: Iterable[Right], namespace: str) -> str:
    """The Role in YAML that grants these rights, to be bound to the user that Refit is there."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in sorted(set(rights)):
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    rules = (
        f'  - {{apiGroups: ["{group}"], resources: [{resource}], verbs: [{", ".join(each)}]}}'
        for (group, resource), each in verbs.items()
    )
    head = (
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: Role",
        f"metadata: {{name: refit, namespace: {namespace}}}",
    )
    return "\n".join((*head, "rules:", *rules))
