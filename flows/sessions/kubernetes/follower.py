"""The Pods and records of all sessions of a namespace, kept by two watches for those who ask often.

A command that asks for one session a few times asks the API server. A run that moves hundreds asks thousands of times:
from its third session on, or its twentieth question, it follows what changes. Its own changes, and all that it sees
while it waits for something, are known at once; those of others, as soon as the API server tells of them. Where that
can't be had, nobody is answered from memory.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Condition, RLock, Thread
from typing import Any, Protocol

import httpx2

from flows.core import fence
from flows.core.waiting import forever
from flows.sessions.kubernetes import records
from flows.sessions.kubernetes.manifests import KIND, SESSION
from flows.sessions.kubernetes.refusals import ClusterError

# So many questions, or questions for so many sessions, are enough to follow. For each question that it answers itself,
# the API server reads the objects of all sessions: labels are no index.
_ENOUGH, _CROWD = 20, 3
_WATCH_SECONDS = 240
_SHORTEST_WATCH_SECONDS = 1.0
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
# So old a change of our own may be that shows what was there after it, and so long its watch may take to tell of it.
_RECENT_SECONDS, _SETTLE_SECONDS = 30.0, 3.0
# So long a question waits for the next page of the list with which the following of thousands begins, and for all.
_PAGE_SECONDS, _LIST_SECONDS = 10.0, 30.0
_FOLLOWED = {"pods": "session", "configmaps": "record"}

Told = Mapping[str, Any]


def _slim(record: Told) -> Told:
    """A record without what servers note beside it, of which there is more than of itself."""
    metadata = {key: value for key, value in record["metadata"].items() if key != "managedFields"}
    return {"metadata": metadata, "data": record.get("data") or {}}


# Kind → how its objects are kept: thousands of them are.
_READ: Mapping[str, Callable[[Told], Any]] = {"pods": records.pod, "configmaps": _slim}


def keeps(resource: str, told: Told) -> bool:
    """Whether an object is one of those that are followed."""
    labels = (told.get("metadata") or {}).get("labels") or {}
    return resource in _FOLLOWED and labels.get(KIND) == _FOLLOWED[resource] and SESSION in labels


class Server(Protocol):
    """The API server, as far as it is followed."""

    def page(self, resource: str, **params: str) -> dict[str, Any]:
        """A page of the objects of a kind."""

    def stream(self, resource: str, **params: str) -> Any:
        """Their changes, as a stream of HTTP."""


@dataclass
class _Kind:
    """The objects of one kind, by session and name; `live`: they are all there is, up to the version `told`.

    `beginning`: they are listed; nobody waits for that list after `patience`, in monotonic seconds; each page puts that
    off, up to `limit`.
    """

    live: bool = False
    beginning: bool = False
    patience: float = 0.0
    limit: float = 0.0
    pid: int = 0
    told: int = 0
    objects: dict[str, dict[str, tuple[int, Any]]] = field(default_factory=dict)


class Follower:
    """The known objects of a namespace.

    Args:
        server: the API server, with the namespace.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._lock, self._asked = server, RLock(), 0
        self._sessions = set[str]()  # that were asked for before anybody followed
        self._told = Condition(self._lock)
        self._own: dict[tuple[str, str], tuple[int, float, int]] = {}
        self._kinds = {resource: _Kind() for resource in _FOLLOWED}
        self._waiting: dict[tuple[str, str], list[SimpleQueue[Told | None]]] = {}

    def of(self, resource: str, session: str) -> tuple[Any, ...] | None:
        """The objects of a session; none: nobody has followed, and the API server has to be asked.

        Pods are `SessionPod`, records are as they were told.
        """
        with self._told:
            self._asked += 1
            kind = self._kinds[resource]
            if kind.pid != os.getpid():
                self._sessions.add(session)
                if self._asked < _ENOUGH and len(self._sessions) < _CROWD:
                    return None
                self._begin(resource, kind)
            # Hundreds that move at the same time would each ask the API server for what the list is about to tell.
            # A move of one session alone doesn't wait: people may be kept waiting meanwhile.
            if len(self._sessions) > 1:
                while kind.beginning and (left := kind.patience - time.monotonic()) > 0:
                    self._told.wait(left)
            if not kind.live:
                return None
            return tuple(told for _, told in kind.objects.get(session, {}).values() if told is not None)

    def settled(self, resource: str, session: str) -> tuple[Any, ...] | None:
        """The objects of a session as they were after our own last change of one of them; none: nobody can tell.

        An API server tells of changes of one kind in their order: once it has told of ours, all before it are known.
        After it, nobody else changes them but under another lease.
        """
        with self._told:
            kind, version = self._kinds[resource], self.own_change(resource, session)
            if not version or kind.pid != os.getpid():
                return None
            if not self._told.wait_for(lambda: not kind.live or kind.told >= version, _SETTLE_SECONDS):
                return None
            return self.of(resource, session) if kind.live else None

    def own_change(self, resource: str, session: str) -> int:
        """The version that an object of a session got by our own last change under this lease; 0: there is none."""
        with self._lock:
            version, at, lease = self._own.get((resource, session), (0, 0.0, 0))
        return version if lease == fence.number() and time.monotonic() - at <= _RECENT_SECONDS else 0

    def changed(self, resource: str, told: Told) -> None:
        """Know that we have changed an object just now, by something that wasn't in it before."""
        if keeps(resource, told):
            session, version = told["metadata"]["labels"][SESSION], str(told["metadata"].get("resourceVersion", ""))
            at = int(version) if version.isdecimal() else 0
            with self._lock:
                self._own[resource, session] = (at, time.monotonic(), fence.number())

    def _begin(self, resource: str, kind: _Kind) -> None:
        kind.live, kind.pid, kind.objects, kind.told = False, os.getpid(), {}, 0
        self._begins_list(kind)
        Thread(target=self._follow, args=(resource,), name=f"follow-{resource}", daemon=True).start()

    def saw(self, resource: str, told: Told, *, gone: bool = False) -> None:
        """Know an object as it was told, unless a later state of it is known already."""
        if not keeps(resource, told):
            return
        metadata = told["metadata"]
        labels, name = metadata["labels"], metadata["name"]
        version = int(metadata["resourceVersion"]) if str(metadata.get("resourceVersion", "")).isdecimal() else 0
        with self._lock:
            by_name = self._kinds[resource].objects.setdefault(labels[SESSION], {})
            if version >= by_name.get(name, (0, None))[0]:
                by_name[name] = (version, None if gone else _READ[resource](told))
                for queue in self._waiting.get((resource, name), ()):
                    queue.put(None if gone else told)

    @contextmanager
    def changes(self, resource: str, name: str) -> Iterator[SimpleQueue[Told | None] | None]:
        """The changes of an object within the `with` block, none for its end; none: nobody follows its kind."""
        queue, key = SimpleQueue[Told | None](), (resource, name)
        with self._lock:
            kind = self._kinds.get(resource)
            follows = bool(kind and kind.live and kind.pid == os.getpid())
            self._waiting.setdefault(key, []).append(queue)
        try:
            yield queue if follows else None
        finally:
            with self._lock:
                self._waiting[key].remove(queue)
                if not self._waiting[key]:
                    del self._waiting[key]

    def removed(self, resource: str, name: str) -> None:
        """Know that an object is gone that was removed at once."""
        if resource == "configmaps":
            with self._lock:
                for by_name in self._kinds[resource].objects.values():
                    if name in by_name:
                        by_name[name] = (by_name[name][0], None)

    def _follow(self, resource: str) -> None:
        def failed(_: Exception) -> None:
            """Nothing: questions go to the API server meanwhile, which says what is wrong."""

        task = partial(self._follow_once, resource)
        forever(task, failed, pause=_PAUSE_SECONDS, longest=_LONGEST_PAUSE_SECONDS)

    def _follow_once(self, resource: str) -> None:
        """Follow from a new list on, until the API server has forgotten what changed since the last news.

        Raises:
            ClusterError: it refuses, or ends a watch that has only begun.
            httpx2.HTTPError: it doesn't answer.
        """
        kind = self._kinds[resource]
        try:
            self._begins_list(kind)
            version = self._listed(resource)
            self._is(kind, live=True)
            while version:
                began = time.monotonic()
                version = self._watched(resource, version)
                if version and time.monotonic() - began < _SHORTEST_WATCH_SECONDS:
                    raise ClusterError(f"The API server ends the watch of {resource} at once.")
        finally:
            self._is(kind, live=False)

    def _begins_list(self, kind: _Kind) -> None:
        """Let questions wait for a list."""
        with self._told:
            kind.beginning, kind.limit = True, time.monotonic() + _LIST_SECONDS
            self._awaits_page(kind)

    def _awaits_page(self, kind: _Kind) -> None:
        """Let questions wait for the next page of a list."""
        with self._told:
            kind.patience = min(kind.limit, time.monotonic() + _PAGE_SECONDS)

    def _is(self, kind: _Kind, *, live: bool) -> None:
        with self._told:
            kind.live, kind.beginning = live, False
            self._told.notify_all()

    def _listed(self, resource: str) -> str:
        """Know all objects of a kind; returns the version of the list."""
        params, there = {"labelSelector": f"{KIND}={_FOLLOWED[resource]}", "limit": "500"}, set[str]()
        while True:
            told = self._server.page(resource, **params)
            for one in told["items"]:
                there.add(one["metadata"]["name"])
                self.saw(resource, one)
            if not (more := told["metadata"].get("continue")):
                break
            params["continue"] = more
            self._awaits_page(self._kinds[resource])
        version = str(told["metadata"]["resourceVersion"])
        with self._lock:  # what was removed while nobody followed
            for by_name in self._kinds[resource].objects.values():
                for name, (seen, one) in by_name.items():
                    if one is not None and name not in there and seen <= int(version):
                        by_name[name] = (seen, None)
        self._has_told(resource, version)
        return version

    def _has_told(self, resource: str, version: str) -> None:
        with self._told:
            self._kinds[resource].told = int(version)
            self._told.notify_all()

    def _watched(self, resource: str, version: str) -> str:
        """Know what changes from a version on; returns the version up to which it was told; empty: list anew."""
        params = {"labelSelector": f"{KIND}={_FOLLOWED[resource]}", "resourceVersion": version}
        more = {"watch": "1", "timeoutSeconds": str(_WATCH_SECONDS), "allowWatchBookmarks": "true"}
        with self._server.stream(resource, **params, **more) as answer:
            if answer.status_code == httpx2.codes.GONE:
                return ""
            if answer.is_error:
                raise ClusterError(f"The API server refuses to tell of changes of {resource}: {answer.status_code}.")
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return ""
                version = str(event["object"]["metadata"]["resourceVersion"])
                if event["type"] != "BOOKMARK":
                    self.saw(resource, event["object"], gone=event["type"] == "DELETED")
                self._has_told(resource, version)
        return version
