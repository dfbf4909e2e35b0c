"""The connection to an API server: calls that outlast its outages, and its refusals as errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx2
from lightkube import KubeConfig
from lightkube.config import client_adapter
from lightkube.core.exceptions import ConfigError

from flows.core import fence
from flows.core.waiting import retry
from flows.sessions.kubernetes.kinds import GROUPS, VERSIONS
from flows.sessions.kubernetes.manifests import ClusterOptions
from flows.sessions.kubernetes.refusals import Answer, ClusterError, Outage, Right, no_answer, not_served, refusal

SECONDS = 30.0
# An API server that is restarted is away for half a minute, where it is the only one.
_OUTAGE_SECONDS, OUTAGE_PAUSE_SECONDS = 60.0, 0.5
_BUSY = (httpx2.codes.TOO_MANY_REQUESTS, httpx2.codes.SERVICE_UNAVAILABLE)
# So often a call is made again that the server has failed at, or that met another one which changed the same object.
_FAILURES = 3
# Hundreds of moves go on at the same time; one that waits for a connection waits for others to end their calls.
_CONNECTIONS = 64
_Done = TypeVar("_Done")


class ApiServer:
    """The API server of a cluster."""

    def __init__(self, options: ClusterOptions) -> None:
        """Nothing is asked of it yet."""
        self.options = options
        self._has_answered = False
        self._versions: dict[str, str] = {}

    @cached_property
    def _http(self) -> httpx2.Client:
        limits = httpx2.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
        return httpx2.Client(**self._parameters, limits=limits)

    @cached_property
    def _parameters(self) -> dict[str, Any]:
        try:
            config = KubeConfig.from_env().get(self.options.context or None)
            if config is None:
                raise ConfigError("there is no kubeconfig, and this is no Pod")
            timeout = httpx2.Timeout(SECONDS, pool=None)
            return client_adapter.ConnectionParams(timeout=timeout, trust_env=False).httpx_params(config)
        except (ConfigError, OSError, ValueError) as error:
            raise ClusterError(
                "No cluster is known here.",
                why=str(error),
                hint="set KUBECONFIG, or `kubectl config use-context`; `kubernetes.context` names another context.",
            ) from None

    def close(self) -> None:
        """End all connections."""
        if "_http" in self.__dict__:
            self.__dict__.pop("_http").close()

    def _send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """One call, again and again while the server is away or busy, and some times where it fails.

        No POST is repeated that was lost. One that failed may have been done: then it is told that the object is there.
        """

        failures = 0

        def send() -> httpx2.Response:
            nonlocal failures
            try:
                answer = self._http.request(method, path, **more)
            except httpx2.ConnectError as error:
                raise Outage from error
            except httpx2.TransportError as error:
                if method == "POST":  # it may have been done
                    raise
                raise Outage from error
            failures += _has_failed(answer)
            if self._has_answered and (answer.status_code in _BUSY or (_has_failed(answer) and failures <= _FAILURES)):
                raise Outage(answer)
            return answer

        first = not self._has_answered
        answer = self._through_outages(send)
        if first and (answer.status_code == httpx2.codes.TOO_MANY_REQUESTS or _has_failed(answer)):
            return self._through_outages(send)  # it is there
        return answer

    def _through_outages(self, call: Callable[[], _Done]) -> _Done:
        """The result of a call that raises `Outage`, or is refused a connection, while the API server is away.

        A server that has answered before is waited for: it is restarted or upgraded, and sessions may be half moved.
        """

        def pause(_: int) -> float:
            fence.check()
            return OUTAGE_PAUSE_SECONDS

        seconds = _OUTAGE_SECONDS if self._has_answered else 0.0
        try:
            done = retry(call, (Outage, ConnectionRefusedError), seconds=seconds, pause=pause)
        except Outage as outage:
            if outage.answer is None:
                raise outage.__cause__ or outage from None
            return cast("_Done", outage.answer)
        self._has_answered = True
        return done

    @contextmanager
    def _errors(self, verb: str, resource: str) -> Iterator[None]:
        try:
            yield
        except httpx2.HTTPError as error:
            raise no_answer(f"{verb} {resource}", error) from None

    def _checked(self, answer: httpx2.Response, verb: str, resource: str) -> httpx2.Response:
        if answer.is_success:
            return answer
        right = Right(resource, verb, GROUPS.get(resource, ""))
        raise self._refusal(Answer.read(answer.status_code, answer.content), right)

    def _refusal(self, answer: Answer, right: Right) -> ClusterError:
        """A refusal as an error; a missing right is told apart from what the cluster refuses to everybody."""
        allowed = None
        if answer.status == httpx2.codes.FORBIDDEN:
            with suppress(ClusterError, httpx2.HTTPError):
                allowed = self.may(right)
        return refusal(answer, right, self.options.namespace, allowed)

    def may(self, right: Right) -> bool:
        """Whether RBAC grants a right to Refit, in its namespace or to what is in none.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        resource, _, part = right.resource.partition("/")
        namespace = "" if resource == "nodes" else self.options.namespace
        asked = {"namespace": namespace, "verb": right.verb, "resource": resource, "subresource": part}
        asked["group"] = right.group
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        with self._errors("create", "selfsubjectaccessreviews"):
            answer = self._http.post(path, json=review)
        if not answer.is_success:
            told = Answer.read(answer.status_code, answer.content)
            raise refusal(told, Right("selfsubjectaccessreviews", "create"), self.options.namespace, None)
        return bool(answer.json().get("status", {}).get("allowed"))

    def of_all(self, group: str, resource: str, name: str = "") -> dict[str, Any] | None:
        """An object that is in no namespace, or the list of them; none: there is no such.

        Args:
            group: and version of its API, e.g. `apis/storage.k8s.io/v1`.
            resource: e.g. `storageclasses`.
            name: of the object; empty: all.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        with self._errors("get", resource):
            answer = self._send("GET", "/".join(filter(None, ("", group, resource, quote(name, safe="")))))
        if answer.status_code == httpx2.codes.NOT_FOUND:
            return None
        return dict(self._checked(answer, "get", resource).json())

    def version(self, resource: str) -> str:
        """Group of a kind of object with the version that is asked for: the one that the server prefers, as budgets of
        1.20 are in v1beta1 alone, or the best one that Refit writes.

        Raises:
            NotServed: the server has none that Refit writes.
            ClusterError: the API server doesn't answer, or refuses.
        """
        group = GROUPS[resource]
        if group not in self._versions:
            told = self.of_all("apis", group) or {}
            chosen = (told.get("preferredVersion") or {}).get("version") or "v1"
            if versions := VERSIONS.get(group):
                served = [each.get("version") for each in told.get("versions") or ()]
                if not (chosen := next((each for each in versions if each in served), "")):
                    raise not_served(group, versions, served)
            self._versions[group] = f"{group}/{chosen}"
        return self._versions[group]

    def forget_version(self, resource: str) -> None:
        """Ask the server again which version of a kind of object it has, the next time: it may have been upgraded."""
        self._versions.pop(GROUPS[resource], None)


def _has_failed(answer: httpx2.Response) -> bool:
    """Whether the same call may well succeed in a moment: none that rests on what its caller has seen."""
    if answer.status_code == httpx2.codes.INTERNAL_SERVER_ERROR:
        return True
    if answer.status_code != httpx2.codes.CONFLICT or b"resourceVersion" in answer.request.content:
        return False
    told: dict[str, Any] = {}
    with suppress(ValueError):
        told = json.loads(answer.content)
    return told.get("reason") == "Conflict" and b"preconditions" not in answer.request.content
