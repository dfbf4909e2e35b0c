"""One namespace of a cluster: its objects as plain data, and programs in its Pods."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from websockets.exceptions import InvalidMessage, InvalidStatus, WebSocketException
from websockets.sync.connection import Connection

from flows.core import fence
from flows.core.waiting import retry
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.api_server import OUTAGE_PAUSE_SECONDS, SECONDS, ApiServer
from flows.sessions.kubernetes.follower import Follower, keeps
from flows.sessions.kubernetes.kinds import GROUPS, VERBS
from flows.sessions.kubernetes.manifests import KIND, SESSION, ClusterOptions
from flows.sessions.kubernetes.refusals import (
    Answer,
    ClusterAway,
    ClusterError,
    Conflict,
    Outage,
    Right,
    StillWaiting,
    no_answer,
    taken,
)
from flows.sessions.kubernetes.streams import Program, ProgramEnded, begun_by_a_line, socket

_PAGE = 500  # objects of one answer
_STREAM_SECONDS = 120.0  # a server that follows tells at least once in a minute that nothing happens
# A connection to a program in a Pod: in it, a kubelet is restarted. A machine that is busy with hundreds of moves may
# need half of it for one handshake; an answer that is lost leaves time for another one.
_CONNECT_SECONDS, _OF_WHAT_IS_LEFT = 20.0, 0.6
# For each question about one session, the server reads the objects of all: labels are no index. Where nobody follows,
# as when the server is just back, hundreds of moves would ask together for what the follower is about to know.
# Nobody waits for the answers of others for longer: people may be kept waiting meanwhile.
_QUESTIONS, _QUEUE_SECONDS = 4, 5.0
_MANAGER = "refit"
_Done = TypeVar("_Done")


class Cluster(ApiServer):
    """One namespace of a cluster. Each call that changes something asks for the lease first."""

    def __init__(self, options: ClusterOptions) -> None:
        super().__init__(options)
        self._is_ours = False
        self.follower = Follower(self)
        self._questions = BoundedSemaphore(_QUESTIONS)

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
        return [*self.each(resource, dict, **labels)]

    def each(self, resource: str, read: Callable[[dict[str, Any]], _Done], **labels: str) -> Sequence[_Done]:
        """As `list`, with what `read` makes of each object: of thousands, only a page is in memory as it was told.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        params, made = {"labelSelector": _selector(labels), "limit": str(_PAGE)}, deque[_Done]()
        while True:
            try:
                told = self.page(resource, **params)
            except ClusterError as error:
                if error.status != httpx2.codes.GONE:  # the server keeps the rest of a list for some minutes
                    raise
                made.clear()
                params.pop("continue", None)
                continue
            made += map(read, told["items"])
            if not (rest := told["metadata"].get("continue")):
                return tuple(made)
            params["continue"] = rest

    def each_since(
        self, resource: str, version: int, read: Callable[[dict[str, Any]], _Done], **labels: str
    ) -> Sequence[_Done]:
        """As `each`, as the objects were at a version or later: that a server knows without reading its database.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        # Without a limit this means "not older than". `resourceVersionMatch`, or a limit, lets 1.20 read its database.
        asked = {"labelSelector": _selector(labels), "resourceVersion": str(version)}
        try:
            return tuple(map(read, self.page(resource, **asked)["items"]))
        except ClusterError as error:
            if error.status != httpx2.codes.GATEWAY_TIMEOUT:  # it hasn't heard of this version in time
                raise
        return self.each(resource, read, **labels)

    def of_session(
        self, resource: str, session: str, kind: str, read: Callable[[dict[str, Any]], _Done]
    ) -> Sequence[_Done]:
        """The objects of a session, as the follower knows them, or else the API server.

        Args:
            resource: the kind of object.
            session: its name.
            kind: the value of the label `KIND`.
            read: makes of an object what the follower has of it.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        followed: Sequence[_Done] | None = self.follower.of(resource, session)
        if followed is not None:
            return followed
        has_place = self._questions.acquire(timeout=_QUEUE_SECONDS)
        try:
            followed = self.follower.of(resource, session)
            return self.each(resource, read, **{SESSION: session, KIND: kind}) if followed is None else followed
        finally:
            if has_place:
                self._questions.release()

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

    def patch(
        self,
        resource: str,
        name: str,
        change: Mapping[str, Any] | Sequence[Any],
        kind: str = "strategic-merge",
        **more: str,
    ) -> dict[str, Any]:
        """Change an object; a `resourceVersion` in the change says what it was made for; `more`, e.g. `dryRun`.

        Raises:
            Conflict: it was changed meanwhile.
            ClusterError: the API server doesn't answer, or refuses.
        """
        self._check()
        headers = {"Content-Type": f"application/{kind}-patch+json"}
        content = json.dumps(change)
        params = {"fieldManager": _MANAGER, **more}
        return self._ask("PATCH", self._path(resource, name), params=params, content=content, headers=headers)

    def delete(
        self, resource: str, name: str, grace: float | None = None, uid: str = "", *, propagation: str = ""
    ) -> None:
        """Remove an object, if it is the one with this uid; one that is gone already is no error.

        Args:
            resource: the kind of object.
            name: of the object.
            grace: seconds that its programs have to end.
            uid: of the object; empty: whichever has the name.
            propagation: when the Pods go that a controller has made for it: `Background` after it, `Foreground` before.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        self._check()
        body: dict[str, Any] = {"gracePeriodSeconds": int(grace)} if grace is not None else {}
        body |= {"preconditions": {"uid": uid}} if uid else {}
        body |= {"propagationPolicy": propagation} if propagation else {}
        try:
            self._ask("DELETE", self._path(resource, name), json=body)
        except ClusterError as error:
            if error.status != httpx2.codes.NOT_FOUND:
                raise
        self.follower.removed(resource, name)

    def wait(
        self,
        resource: str,
        name: str,
        until: Callable[[Mapping[str, Any] | None], bool],
        seconds: float,
        told: str,
        begin: Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Watch an object until something holds of it; none stands for one that is not there.

        Args:
            resource: the kind of object.
            name: of the object.
            until: says of a state of the object whether it is over.
            seconds: for which it is waited for.
            told: the error if that doesn't happen, without the time.
            begin: called before, once no change escapes; returns the object as it is then.

        Raises:
            StillWaiting: that doesn't happen in so many seconds.
            ClusterError: the API server refuses.
        """
        deadline = time.monotonic() + seconds
        with self.follower.changes(resource, name) as queue:
            seen = begin() if begin else self.find(resource, name)
            while not until(seen):
                left = deadline - time.monotonic()
                if left <= 0:
                    hint = f"see `kubectl describe {resource} {name}`."
                    raise StillWaiting(f"{told} within {seconds:g} s.", hint=hint)
                bound = min(left, SECONDS / 2)
                with suppress(ClusterAway):  # the next `find` waits until it is back
                    followed = queue if seen is not None and keeps(resource, seen) else None
                    changes = _told(followed, bound) if followed else self._changes(resource, name, seen, bound)
                    if any(until(changed) for changed in changes):
                        return
                seen = self.find(resource, name)

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
                gone = event["type"] == "DELETED"
                self.follower.saw(resource, event["object"], gone=gone)
                yield None if gone else event["object"]

    def page(self, resource: str, **params: str) -> dict[str, Any]:
        """A page of the objects of a kind, as the API server tells it.

        Raises:
            ClusterError: the API server doesn't answer, or refuses.
        """
        return self._ask("GET", self._path(resource), params=params)

    def stream(self, resource: str, **params: str) -> AbstractContextManager[httpx2.Response]:
        """The changes of the objects of a kind, a line each, for as long as the API server goes on."""
        return self._http.stream("GET", self._path(resource), params=params, timeout=_STREAM_SECONDS)

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
        auth, verify = self._parameters["auth"], self._parameters["verify"]

        def attempt() -> Connection:
            try:
                return socket(request, auth, verify, max(1.0, _OF_WHAT_IS_LEFT * (deadline - time.monotonic())))
            except InvalidStatus as error:
                told = Answer.read(error.response.status_code, bytes(error.response.body or b""))
                refused = self._refusal(told, Right("pods/exec", "get"))
                again = (httpx2.codes.TOO_MANY_REQUESTS, httpx2.codes.CONFLICT)
                if refused.status >= httpx2.codes.INTERNAL_SERVER_ERROR or refused.status in again:
                    # Its kubelet is away, for instance.
                    raise Outage from refused
                raise refused from None
            except (InvalidMessage, ConnectionResetError) as error:  # closed without an answer
                raise Outage from error

        deadline = time.monotonic() + _CONNECT_SECONDS
        try:
            return retry(attempt, (Outage, TimeoutError), seconds=_CONNECT_SECONDS, pause=OUTAGE_PAUSE_SECONDS)
        except Outage as outage:
            raise outage.__cause__ or outage from None

    def _path(self, resource: str, name: str = "") -> str:
        group = f"apis/{self.version(resource)}" if resource in GROUPS else "api/v1"
        below = f"/{group}/namespaces/{quote(self.options.namespace, safe='')}/{resource}"
        return f"{below}/{quote(name, safe='')}" if name else below

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        resource, *name = path.partition("/namespaces/")[2].split("/")[1:]
        verb = "list" if method == "GET" and not name else VERBS[method]
        with self._errors(verb, resource):
            answer = self._send(method, path, **more)
        told = dict(self._checked(answer, verb, resource).json())
        self.follower.saw(resource, told)
        return told


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(name if not value else f"{name}={value}" for name, value in labels.items())


def _told(queue: SimpleQueue[Mapping[str, Any] | None], seconds: float) -> Iterator[Mapping[str, Any] | None]:
    """The states of an object for so many seconds."""
    deadline = time.monotonic() + seconds
    with suppress(Empty):
        while True:
            yield queue.get(timeout=max(0.0, deadline - time.monotonic()))


__all__ = ["KIND", "Cluster", "ClusterError", "ClusterOptions", "Conflict", "Program", "ProgramEnded", "StillWaiting"]
