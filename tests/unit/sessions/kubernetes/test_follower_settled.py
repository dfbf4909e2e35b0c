"""The API server need not be asked for the state before a change of our own, once it has told of that change."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from flows.core import fence
from flows.sessions.kubernetes import follower as module
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.follower import Follower
from tests.support.pods import OPTIONS, SESSION
from tests.support.waiting import wait_until


def pod(version: int, name: str = "refit-ada-1") -> dict[str, Any]:
    made = manifests.pod(SESSION, OPTIONS, "s")
    made["metadata"] |= {"resourceVersion": str(version), "name": name}
    return made


class Server:
    """One Pod at version 7, and the changes that a test tells."""

    def __init__(self) -> None:
        self.changes = SimpleQueue[dict[str, Any]]()

    def page(self, resource: str, **params: str) -> dict[str, Any]:
        return {"items": [pod(7)] if resource == "pods" else [], "metadata": {"resourceVersion": "7"}}

    @contextmanager
    def stream(self, resource: str, **params: str) -> Iterator[Any]:
        yield SimpleNamespace(
            status_code=200, is_error=False, iter_lines=lambda: map(json.dumps, iter(self._next, None))
        )

    def _next(self) -> dict[str, Any]:
        return self.changes.get()

    def tell(self, kind: str, told: dict[str, Any]) -> None:
        self.changes.put({"type": kind, "object": told})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def follower(server: Server, monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(module, "_ENOUGH", 1)
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.2)
    made = Follower(server)
    wait_until(lambda: made.of("pods", SESSION.name) is not None)
    return made


def names(seen: tuple[Any, ...] | None) -> list[str] | None:
    return None if seen is None else [each.name for each in seen]


def test_nobody_is_answered_who_has_changed_nothing(follower: Follower) -> None:
    assert follower.settled("pods", SESSION.name) is None


def test_what_was_there_before_our_change_is_known_once_that_is_told(server: Server, follower: Follower) -> None:
    follower.saw("pods", pod(9))
    follower.changed("pods", pod(9))
    assert follower.settled("pods", SESSION.name) is None, "the API server hasn't told of it yet"
    server.tell("ADDED", pod(8, "refit-ada-2"))  # of another, before our own
    server.tell("MODIFIED", pod(9))
    wait_until(lambda: follower.settled("pods", SESSION.name) is not None)
    assert names(follower.settled("pods", SESSION.name)) == ["refit-ada-1", "refit-ada-2"]


def test_a_change_of_long_ago_shows_nothing(
    server: Server, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.changed("pods", pod(7))
    assert names(follower.settled("pods", SESSION.name)) == ["refit-ada-1"]
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert follower.settled("pods", SESSION.name) is None


def test_a_change_under_another_lease_shows_nothing_of_this_one(server: Server, follower: Follower) -> None:
    with fence.needing(lambda: None, number=3):
        follower.changed("pods", pod(7))
        assert names(follower.settled("pods", SESSION.name)) == ["refit-ada-1"]
    with fence.needing(lambda: None, number=5):  # meanwhile another process had the lease
        assert follower.settled("pods", SESSION.name) is None
