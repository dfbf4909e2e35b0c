"""The connection to a cluster: its API server's answers as plain data, its refusals as errors that say what to do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx2
from lightkube import KubeConfig
from lightkube.config import client_adapter
from lightkube.core.exceptions import ConfigError
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.connection import Connection

from flows.core import fence
from flows.core.waiting import retry
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.manifests import KIND, ClusterOptions
from flows.sessions.kubernetes.refusals import (
    Answer,
    ClusterAway,
    ClusterError,
    Conflict,
    Right,
    StillWaiting,
    no_answer,
    refusal,
    taken,
)
from flows.sessions.kubernetes.streams import Program, ProgramEnded, begun_by_a_line, socket

_SECONDS = 30.0
# A connection to a program in a Pod: in it, a kubelet is restarted, or an answer lost.
_CONNECT_SECONDS = 20.0
_MANAGER = "refit"
BUDGETS, POLICIES, SNAPSHOTS = "poddisruptionbudgets", "networkpolicies", "volumesnapshots"
# Kinds of objects that aren't of the core → the group of the API that has them.
GROUPS = {BUDGETS: "policy", POLICIES: "networking.k8s.io", SNAPSHOTS: "snapshot.storage.k8s.io"}
# An API server that is restarted is away for half a minute, where it is the only one.
_OUTAGE_SECONDS, _OUTAGE_PAUSE_SECONDS = 60.0, 0.5
_BUSY = (httpx2.codes.TOO_MANY_REQUESTS, httpx2.codes.SERVICE_UNAVAILABLE)
_Done = TypeVar("_Done")
_PATCHES = {"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json"}


class _Outage(Exception):
    """The API server can't be reached just now, or has too much to do; then `answer` is what it said."""

    def __init__(self, answer: httpx2.Response | None = None) -> None:
        super().__init__()
        self.answer = answer


class Cluster:
    """One namespace of a cluster. Each call that changes something asks for the lease first."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self._has_answered = self._is_ours = False
        self._versions: dict[str, str] = {}

    @cached_property
    def _http(self) -> httpx2.Client:
        return httpx2.Client(**self._parameters)

    @cached_property
    def _parameters(self) -> dict[str, Any]:
        try:
            config = KubeConfig.from_env().get(self.options.context or None)
            if config is None:
                raise ConfigError("there is no kubeconfig, and this is no Pod")
            timeout = httpx2.Timeout(_SECONDS)
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

    def _check(self) -> None:
        """Let nobody act who has lost the lease, or in whose namespace another Refit has its sessions.

        Raises:
            ClusterError: the namespace is another Refit's.
        """
        fence.check()
        if self.options.owner and not self._is_ours:
            mine = manifests.owner(self.options)
            try:
                there = self._ask("POST", self._path("configmaps"), json=mine)
            except Conflict:
                there = self.find("configmaps", manifests.OWNER) or mine
            if there["data"] != mine["data"]:
                raise taken(self.options.namespace, manifests.OWNER)
            self._is_ours = True

    def list(self, resource: str, **labels: str) -> list[dict[str, Any]]:
        """The objects of a kind that bear these labels; an empty value stands for any.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        selector = ",".join(name if not value else f"{name}={value}" for name, value in labels.items())
        return list(self._ask("GET", self._path(resource), params={"labelSelector": selector})["items"])

    def find(self, resource: str, name: str) -> dict[str, Any] | None:
        """One object; none: there is no such.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        try:
            return self._ask("GET", self._path(resource, name))
        except ClusterError as error:
            if error.status == httpx2.codes.NOT_FOUND:
                return None
            raise

    def create(self, resource: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object.

        Raises:
            Conflict: there is one of that name.
            ClusterError: the API server doesn't answer, or refuses.
        """
        self._check()
        return self._ask("POST", self._path(resource), params={"fieldManager": _MANAGER}, json=manifest)

    def ensure(self, resource: str, manifest: Mapping[str, Any]) -> None:
        """Make an object, unless there is one of that name.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        try:
            self.create(resource, manifest)
        except Conflict:
            return

    def patch(self, resource: str, name: str, change: Mapping[str, Any], kind: str = "strategic") -> dict[str, Any]:
        """Change an object; a `resourceVersion` in the change says what it was made for.

        Raises:
            Conflict: it was changed meanwhile.
            ClusterError: the API server doesn't answer, or refuses.
        """
        self._check()
        headers = {"Content-Type": _PATCHES[kind]}
        content = json.dumps(change)
        params = {"fieldManager": _MANAGER}
        return self._ask("PATCH", self._path(resource, name), params=params, content=content, headers=headers)

    def delete(self, resource: str, name: str, grace: float | None = None) -> None:
        """Remove an object; one that is gone already is no error.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        self._check()
        body = {"gracePeriodSeconds": int(grace)} if grace is not None else {}
        try:
            self._ask("DELETE", self._path(resource, name), json=body)
        except ClusterError as error:
            if error.status != httpx2.codes.NOT_FOUND:
                raise

    def wait(
        self, resource: str, name: str, until: Callable[[Mapping[str, Any] | None], bool], seconds: float, told: str
    ) -> None:
        """Watch an object until something holds of it; none stands for one that is not there.

        Raises:
            StillWaiting: that doesn't happen in so many seconds.
            ClusterError: the API server refuses.
        """
        deadline = time.monotonic() + seconds
        while not until(seen := self.find(resource, name)):
            left = deadline - time.monotonic()
            if left <= 0:
                raise StillWaiting(f"{told} within {seconds:g} s.", hint=f"see `kubectl describe {resource} {name}`.")
            with suppress(ClusterAway):  # the next `find` waits until it is back
                for changed in self._changes(resource, name, seen, min(left, _SECONDS / 2)):
                    if until(changed):
                        return

    def _changes(
        self, resource: str, name: str, seen: Mapping[str, Any] | None, seconds: float
    ) -> Iterator[Mapping[str, Any] | None]:
        """The changes of an object from now on; ends when the API server ends it."""
        params = {"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": str(max(1, int(seconds)))}
        if seen:
            params["resourceVersion"] = seen["metadata"]["resourceVersion"]
        with self._errors("watch", resource), self._http.stream("GET", self._path(resource), params=params) as answer:
            if answer.is_error:
                return
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield None if event["type"] == "DELETED" else event["object"]

    def logs(self, pod: str, container: str, lines: int, *, previous: bool = False) -> str:
        """The last lines of a container, or of the one that was there before its last restart; empty: there was none.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        params = {"container": container, "tailLines": str(lines), "limitBytes": str(1 << 20)}
        if previous:
            params["previous"] = "true"
        with self._errors("get", "pods/log"):
            answer = self._send("GET", f"{self._path('pods', pod)}/log", params=params)
        if previous and answer.status_code == httpx2.codes.BAD_REQUEST:
            return ""
        return self._checked(answer, "get", "pods/log").text

    @contextmanager
    def program(self, pod: str, container: str, argv: Sequence[str], stdin: bytes | None = b"") -> Iterator[Program]:
        """Let a program run in a container for as long as the `with` block.

        Args:
            pod: name of the Pod.
            container: name of the container in it.
            argv: the program, which is found by the container's PATH, and its arguments.
            stdin: all of its standard input; none: it gets what is written to it meanwhile.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        self._check()
        try:
            with self._through_outages(
                lambda: self._connected(pod, container, begun_by_a_line(argv, stdin is None))
            ) as socket:
                program = Program(socket, argv)
                program.write(f"{len(stdin or b'')}\n".encode() + (stdin or b""))
                yield program
        except (WebSocketException, OSError) as error:
            raise no_answer("get pods/exec", error) from None

    def _connected(self, pod: str, container: str, argv: Sequence[str]) -> Connection:
        """A connection to a shell that waits for its first line: one that gets none has done nothing yet."""
        params = {"command": list(argv), "container": container, "stdout": "1", "stderr": "1", "stdin": "1"}
        request = self._http.build_request("GET", f"{self._path('pods', pod)}/exec", params=params)

        def attempt() -> Connection:
            try:
                return socket(request, self._parameters["auth"], self._parameters["verify"])
            except InvalidStatus as error:
                told = Answer.read(error.response.status_code, bytes(error.response.body or b""))
                refused = self._refusal(told, Right("pods/exec", "get"))
                if refused.status >= httpx2.codes.INTERNAL_SERVER_ERROR:  # its kubelet is away, for instance
                    raise _Outage from refused
                raise refused from None

        try:
            return retry(attempt, (_Outage, TimeoutError), seconds=_CONNECT_SECONDS, pause=_OUTAGE_PAUSE_SECONDS)
        except _Outage as outage:
            raise outage.__cause__ or outage from None

    def _path(self, resource: str, name: str = "") -> str:
        group = f"apis/{self.version(resource)}" if resource in GROUPS else "api/v1"
        below = f"/{group}/namespaces/{quote(self.options.namespace, safe='')}/{resource}"
        return f"{below}/{quote(name, safe='')}" if name else below

    def version(self, resource: str) -> str:
        """Group of a kind of object with the version that the server prefers: budgets of 1.20 are in v1beta1 alone."""
        group = GROUPS[resource]
        if group not in self._versions:
            told = self.of_all("apis", group) or {}
            preferred = (told.get("preferredVersion") or {}).get("groupVersion")
            self._versions[group] = str(preferred or f"{group}/v1")
        return self._versions[group]

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        resource, *name = path.partition("/namespaces/")[2].split("/")[1:]
        verb = "list" if method == "GET" and not name else _VERBS[method]
        with self._errors(verb, resource):
            answer = self._send(method, path, **more)
        return dict(self._checked(answer, verb, resource).json())

    def _send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """One call, again and again while the server is away or busy; no POST that was lost is repeated."""

        def send() -> httpx2.Response:
            try:
                answer = self._http.request(method, path, **more)
            except httpx2.ConnectError as error:
                raise _Outage from error
            except httpx2.TransportError as error:
                if method == "POST":  # it may have been done
                    raise
                raise _Outage from error
            if answer.status_code in _BUSY and self._has_answered:
                raise _Outage(answer)
            return answer

        return self._through_outages(send)

    def _through_outages(self, call: Callable[[], _Done]) -> _Done:
        """The result of a call that raises `_Outage`, or is refused a connection, while the API server is away.

        A server that has answered before is waited for: it is restarted or upgraded, and sessions may be half moved.
        """

        def pause(_: int) -> float:
            fence.check()
            return _OUTAGE_PAUSE_SECONDS

        seconds = _OUTAGE_SECONDS if self._has_answered else 0.0
        try:
            done = retry(call, (_Outage, ConnectionRefusedError), seconds=seconds, pause=pause)
        except _Outage as outage:
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
            answer = self._http.get("/".join(filter(None, ("", group, resource, quote(name, safe="")))))
        if answer.status_code == httpx2.codes.NOT_FOUND:
            return None
        return dict(self._checked(answer, "get", resource).json())


_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


__all__ = ["KIND", "Cluster", "ClusterError", "ClusterOptions", "Conflict", "Program", "ProgramEnded", "StillWaiting"]
