"""Callers, where the Hub is slow, starts just now, or is away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event, Lock
from typing import ClassVar

import pytest

from flows.core.settings import Settings
from flows.web.my_sessions import callers
from flows.web.my_sessions.callers import Callers
from flows.web.my_sessions.overview import Remembered
from flows.web.my_sessions.problems import Code, Problem
from flows.web.people.scopes import Scope
from tests.support.waiting import PATIENCE, free_port, serving


class Answers(BaseHTTPRequestHandler):
    """A Hub that knows ada, and fails as often as it is told."""

    protocol_version = "HTTP/1.1"
    failures: ClassVar[int] = 0
    asked: ClassVar[list[str]] = []
    go: ClassVar[Event] = Event()
    lock: ClassVar[Lock] = Lock()

    def do_GET(self) -> None:
        with self.lock:
            self.asked.append(self.path)
            fails = type(self).failures > 0
            type(self).failures -= fails
        self.go.wait(PATIENCE)
        told = {"kind": "user", "name": "ada", "scopes": list(Scope), "admin": False}
        content = b"locked" if fails else json.dumps(told).encode()
        self.send_response(500 if fails else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(callers, "_PAUSE", 0.01)
    Answers.asked, Answers.failures = [], 0
    Answers.go.set()
    with serving(Answers) as port:
        yield port
        Answers.go.set()


def asking(home: Path, port: int, seconds: float = 60) -> Callers:
    return Callers(Settings(home=home, hub_port=port), seconds)


def test_a_hub_that_fails_for_a_moment_is_asked_again(hub: int, tmp_path: Path) -> None:
    Answers.failures = 3
    assert asking(tmp_path, hub).of("token").person == "ada"
    assert Answers.asked == [*["/hub/api/user"] * 4, "/hub/api/users/ada"]


def test_of_those_who_ask_at_once_one_asks_for_all(hub: int, tmp_path: Path) -> None:
    Answers.go.clear()
    these = asking(tmp_path, hub)
    with ThreadPoolExecutor(20) as pool:
        told = [pool.submit(these.of, "token") for _ in range(20)]
        assert not any(one.done() for one in told)
        Answers.go.set()
        assert {one.result(PATIENCE).person for one in told} == {"ada"}
    assert Answers.asked == ["/hub/api/user", "/hub/api/users/ada"]


def test_while_the_hub_fails_whoever_was_in_stays_in_and_nobody_else_comes(
    hub: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "_PATIENCE", 0.05)
    these = asking(tmp_path, hub, seconds=0.001)
    assert these.of("token").person == "ada"
    time.sleep(0.01)
    Answers.failures = 10_000
    assert these.of("token").person == "ada"
    with pytest.raises(Problem) as refused:
        these.of("another")
    assert refused.value.code is Code.hub_away


def test_a_hub_that_is_away_is_given_seconds_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_START_SECONDS", 0.05)
    monkeypatch.setattr(callers, "_PAUSE", 0.01)
    begun = time.monotonic()
    with pytest.raises(Problem) as refused:
        asking(tmp_path, free_port()).of("token")
    assert refused.value.code is Code.hub_away
    assert 0.02 < time.monotonic() - begun < callers._PATIENCE


def test_an_answer_that_expires_at_once_is_given_all_the_same() -> None:
    remembered = Remembered(0.0)
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        return len(asked)

    assert [remembered.get("how often", ask) for _ in range(3)] == [1, 2, 3]
