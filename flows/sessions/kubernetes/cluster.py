"""The connection to a cluster: its API server's answers as plain data, its refusals as errors that say what to do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any
from urllib.parse import quote

import httpx2
from lightkube import KubeConfig
from lightkube.config import client_adapter
from lightkube.core.exceptions import ConfigError
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.typing import Subprotocol

from flows.core import fence
from flows.sessions.kubernetes.manifests import KIND, ClusterOptions
from flows.sessions.kubernetes.refusals import Answer, ClusterError, Conflict, Right, no_answer, refusal

_SECONDS = 30.0
# Newer servers also speak v5, which adds nothing but the end of an input: `slot write` is told its length.
_PROTOCOL = Subprotocol("v4.channel.k8s.io")
_INPUT, _OUTPUT, _ERRORS, _STATUS = range(4)
_TAIL = 2000
# An API server of 1.20 was seen to lose its answer to a handshake, once in dozens.
_HANDSHAKE_SECONDS = 8.0
# The protocol can't end an input, so that the length of it comes first, in a line. Nothing begins before that line.
_RUN = 'read -r n || exit; if [ "$n" -gt 0 ]; then head -c "$n" | "$@"; else exec "$@" </dev/null; fi'
_TALK = 'read -r n || exit; exec "$@"'
# Bytes of one message; the API server's are a few dozen kilobytes at most.
_MESSAGE = 1 << 20
_MANAGER = "refit"
_PATCHES = {"merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json"}


class Cluster:
    """One namespace of a cluster. Each call that changes something asks for the lease first."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options

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
                hint="set KUBECONFIG, or `kubectl config use-context`; `kubernetes_context` names another context.",
            ) from None

    def close(self) -> None:
        """End all connections."""
        if "_http" in self.__dict__:
            self.__dict__.pop("_http").close()

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
        fence.check()
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
        fence.check()
        headers = {"Content-Type": _PATCHES[kind]}
        content = json.dumps(change)
        params = {"fieldManager": _MANAGER}
        return self._ask("PATCH", self._path(resource, name), params=params, content=content, headers=headers)

    def delete(self, resource: str, name: str, grace: float | None = None) -> None:
        """Remove an object; one that is gone already is no error.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        fence.check()
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
            answer = self._http.get(f"{self._path('pods', pod)}/log", params=params)
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
        fence.check()
        begin = ("/bin/sh", "-c", _TALK if stdin is None else _RUN, "sh")
        try:
            with self._connected(pod, container, [*begin, *argv]) as socket:
                program = Program(socket, argv)
                program.write(f"{len(stdin or b'')}\n".encode() + (stdin or b""))
                yield program
        except (WebSocketException, OSError) as error:
            raise no_answer("get pods/exec", error) from None

    def _connected(self, pod: str, container: str, argv: Sequence[str]) -> Connection:
        """A connection to a shell that waits for its first line: one that gets none has done nothing yet."""
        params = {"command": list(argv), "container": container, "stdout": "1", "stderr": "1", "stdin": "1"}
        request = self._http.build_request("GET", f"{self._path('pods', pod)}/exec", params=params)
        for last in (False, False, True):
            try:
                return self._socket(request)
            except InvalidStatus as error:
                told = Answer.read(error.response.status_code, bytes(error.response.body or b""))
                raise self._refusal(told, Right("pods/exec", "get")) from None
            except TimeoutError:
                if last:
                    raise
        raise AssertionError("unreachable")

    def _socket(self, request: httpx2.Request) -> Connection:
        """A websocket with the credentials and certificates of other requests.

        httpx2's own lets a thread of its own read while another closes, which one connection of TLS doesn't bear.
        """
        if auth := self._parameters["auth"]:
            request = next(auth.sync_auth_flow(request))
        headers = {name: value for name, value in request.headers.items() if name == "authorization"}
        return connect(
            str(request.url.copy_with(scheme="wss")),
            ssl=self._parameters["verify"],
            additional_headers=headers,
            subprotocols=[_PROTOCOL],
            open_timeout=_HANDSHAKE_SECONDS,
            close_timeout=1,
            max_size=_MESSAGE,
            proxy=None,
        )

    def _path(self, resource: str, name: str = "") -> str:
        below = f"/api/v1/namespaces/{quote(self.options.namespace, safe='')}/{resource}"
        return f"{below}/{quote(name, safe='')}" if name else below

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        resource, *name = path.split("/")[5:]
        verb = "list" if method == "GET" and not name else _VERBS[method]
        with self._errors(verb, resource):
            answer = self._http.request(method, path, **more)
        return dict(self._checked(answer, verb, resource).json())

    @contextmanager
    def _errors(self, verb: str, resource: str) -> Iterator[None]:
        try:
            yield
        except httpx2.HTTPError as error:
            raise no_answer(f"{verb} {resource}", error) from None

    def _checked(self, answer: httpx2.Response, verb: str, resource: str) -> httpx2.Response:
        if answer.is_success:
            return answer
        raise self._refusal(Answer.read(answer.status_code, answer.content), Right(resource, verb))

    def _refusal(self, answer: Answer, right: Right) -> ClusterError:
        """A refusal as an error; a missing right is told apart from what the cluster refuses to everybody."""
        allowed = None
        if answer.status == httpx2.codes.FORBIDDEN:
            with suppress(ClusterError, httpx2.HTTPError):
                allowed = self.may(right)
        return refusal(answer, right, self.options.namespace, allowed)

    def may(self, right: Right) -> bool:
        """Whether RBAC grants a right to Refit in its namespace.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        resource, _, part = right.resource.partition("/")
        asked = {"namespace": self.options.namespace, "verb": right.verb, "resource": resource, "subresource": part}
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


class Program:
    """A program in a container of a Pod, spoken to through the API server."""

    def __init__(self, socket: Connection, argv: Sequence[str]) -> None:
        self._socket, self._argv = socket, argv
        self._errors = b""

    def write(self, data: bytes) -> None:
        """Send something to its standard input."""
        self._socket.send(bytes((_INPUT,)) + data)

    def output(self, limit: float, most: int) -> Iterator[bytes]:
        """Its standard output as it comes, until it has ended.

        Args:
            limit: seconds that it may take.
            most: bytes that it may write, on standard output and standard error together.

        Raises:
            ClusterError: it has failed, takes longer, or writes more.
        """
        deadline, written = time.monotonic() + limit, 0
        while True:
            channel, part = self._message(deadline, limit)
            written += len(part)
            if written > most:
                raise ClusterError(f"{self._argv[0]} wrote more than {most} bytes in its session, and was given up.")
            if channel == _STATUS:
                self._check(json.loads(part))
                return
            if channel == _OUTPUT and part:
                yield part
            if channel == _ERRORS:
                self._errors = (self._errors + part)[-_TAIL:]

    def _message(self, deadline: float, limit: float) -> tuple[int, bytes]:
        try:
            message = self._socket.recv(timeout=max(0.0, deadline - time.monotonic()), decode=False)
        except TimeoutError:
            raise ClusterError(
                f"{self._argv[0]} took longer than {limit:g} s in its session, and was given up."
            ) from None
        return message[0], message[1:]

    def _check(self, status: Mapping[str, Any]) -> None:
        if status.get("status") == "Success":
            return
        causes = {
            cause.get("reason"): cause.get("message") for cause in (status.get("details") or {}).get("causes", ())
        }
        code = causes.get("ExitCode")
        ended = f"ended with exit code {code}" if code else "could not be run"
        raise ProgramEnded(
            f"{self._argv[0]} {ended} in its session.",
            why=self._errors.decode(errors="replace").strip() or str(status.get("message", "")),
            code=int(code or -1),
        )


class StillWaiting(ClusterError):
    """Something was waited for, and didn't happen in time."""


class ProgramEnded(ClusterError):
    """A program in a container has failed.

    Attributes:
        code: its exit code; -1: it could not be run.
    """

    def __init__(self, what: str, *, why: str, code: int) -> None:
        super().__init__(what, why=why)
        self.code = code


__all__ = ["KIND", "Cluster", "ClusterError", "ClusterOptions", "Conflict", "Program", "ProgramEnded", "StillWaiting"]
