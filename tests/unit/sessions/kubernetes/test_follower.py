"""Following the Pods of a namespace, on an API server that forgets, refuses and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import httpx2
import pytest

from flows.sessions.kubernetes import follower as following
from flows.sessions.kubernetes.follower import Follower
from flows.sessions.kubernetes.manifests import KIND, SESSION
from flows.sessions.kubernetes.refusals import ClusterError
from tests.support.waiting import wait_until

_ENOUGH_QUESTIONS = 30


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after failures that nobody notices; how long they are is tested in tests/unit/core/test_waiting.py."""
    monkeypatch.setattr(following, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(following, "_LONGEST_PAUSE_SECONDS", 0.05)


def record(version: int, word: str) -> dict[str, Any]:
    labels = {KIND: "record", SESSION: "ada"}
    return {"metadata": {"name": "ada", "labels": labels, "resourceVersion": str(version)}, "data": {"word": word}}


@dataclass
class Double:
    """An API server with one record; `answers` are those to the next watches. Then nothing changes any more."""

    answers: list[httpx2.Response]
    listed: int = 0
    asked_from: list[str] = field(default_factory=list)

    def page(self, resource: str, **params: str) -> dict[str, Any]:
        self.listed += 1
        items = [record(self.listed, f"list {self.listed}")] if resource == "configmaps" else []
        return {"metadata": {"resourceVersion": str(self.listed)}, "items": items}

    @contextmanager
    def stream(self, resource: str, **params: str) -> Iterator[httpx2.Response]:
        self.asked_from.append(params["resourceVersion"])
        if not self.answers:
            Event().wait()  # the thread that follows goes with its process
        answer = self.answers.pop(0)
        if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
            raise httpx2.ConnectError("away")
        yield answer


def changed(version: int, word: str) -> httpx2.Response:
    return httpx2.Response(200, text=json.dumps({"type": "MODIFIED", "object": record(version, word)}) + "\n")


def followed(server: Double) -> Follower:
    follower = Follower(server)
    for _ in range(_ENOUGH_QUESTIONS):
        follower.of("configmaps", "ada")
    return follower


def word(follower: Follower) -> str:
    return "".join(one["data"]["word"] for one in follower.of("configmaps", "ada") or ())


def test_a_version_that_the_server_has_forgotten_is_listed_anew() -> None:
    server = Double([httpx2.Response(410), changed(90, "later")])
    follower = followed(server)
    wait_until(lambda: word(follower) == "later")
    assert server.listed >= 2


def test_a_watch_that_ends_at_once_is_a_failure_so_that_none_is_begun_right_after_it() -> None:
    server = Double([changed(90, "later"), changed(91, "too late")])
    follower = Follower(server)
    with pytest.raises(ClusterError, match="ends the watch"):
        follower._follow_once("configmaps")
    assert len(server.asked_from) == 1


@pytest.mark.parametrize("status", [403, 429, 503])
def test_a_server_that_refuses_or_is_away_is_asked_again_and_nobody_answered_from_memory(status: int) -> None:
    server = Double([httpx2.Response(status)] * 2 + [changed(90, "later")])
    follower = Follower(server)
    with pytest.raises((ClusterError, httpx2.HTTPError)):
        follower._follow_once("configmaps")
    assert follower.of("configmaps", "ada") is None
    for _ in range(_ENOUGH_QUESTIONS):
        follower.of("configmaps", "ada")
    wait_until(lambda: word(follower) == "later")
