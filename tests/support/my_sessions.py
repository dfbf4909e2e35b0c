"""The API and the page of people's own sessions, as their programs and browsers use them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import httpx

from flows.web.people.scopes import Scope
from tests.support.hub import Hub, Person
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until

BASE = "/services/sessions"


class Api:
    """The API with a token."""

    def __init__(self, hub: Hub, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.token = token
        self._client = httpx.Client(base_url=f"{hub.settings.gateway_url}{BASE}/api", headers=headers, **PATIENTLY)

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._client.request(method, path, **more)

    def settled(self, name: str) -> dict[str, Any]:
        """A session as soon as nothing is done to it any more."""
        seen: list[dict[str, Any]] = []

        def settles() -> bool:
            seen.append(self("GET", f"/sessions/{name}").json())
            return not seen[-1]["doing"] or bool(seen[-1]["doing"]["ended"])

        wait_until(settles)
        return seen[-1]


def api(person: Person, scopes: Sequence[Scope] = tuple(Scope), **more: object) -> Api:
    """The API with a new token of somebody."""
    answer = person.api("POST", f"/users/{person.name}/tokens", scopes=list(scopes), **more)
    assert answer.status_code == 201, answer.text
    return Api(person.hub, answer.json()["token"])


def refit(home: Path, *words: str, limit: float = max(120, PATIENCE)) -> subprocess.CompletedProcess[str]:
    """Call `refit` on a person's own machine, whose login is below this home."""
    argv, surroundings = (
        [sys.executable, "-m", "flows.cli.main", *words],
        {"XDG_CONFIG_HOME": str(home), "PATH": "/bin"},
    )
    return subprocess.run(argv, env=surroundings, capture_output=True, text=True, check=False, timeout=limit)


def submit(person: Person, shown: httpx.Response, verb: str, session: str, **more: str) -> httpx.Response:
    """Send a form of a page."""
    [key, *_] = re.findall(r'name="form" value="([^"]*)"', shown.text)
    return person.client.post(f"{BASE}/do/{verb}", data={"form": unescape(key), "session": session, **more})
