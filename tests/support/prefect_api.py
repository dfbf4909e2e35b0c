"""A client of a Prefect server that gives it time, as Prefect's own does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx
from fastapi.routing import APIWebSocketRoute

from flows import services
from flows.core.lazily import lazily
from flows.core.outside import NOBODY
from flows.core.settings import Settings
from flows.services import csrf
from tests.support.waiting import PATIENCE

# Prefect's server takes 2 s of CPU to be imported; each process of a run imports this module.
with lazily(globals()):
    from prefect.server.api.server import API_ROUTERS
    from prefect.testing.utilities import prefect_test_harness

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
_ANSWER_SECONDS = 60


class Patient(httpx.HTTPTransport):
    """Asks again where a server doesn't answer or says 503: on SQLite, so Prefect says that its database is locked."""

    def __init__(self) -> None:
        # The server hangs up on a connection that is idle for 5 seconds, and may do so just when it is used again.
        super().__init__(limits=httpx.Limits(max_keepalive_connections=0), verify=NOBODY)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                answer = super().handle_request(request)
            except httpx.TimeoutException:
                if time.monotonic() > deadline:
                    raise
                continue
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                return answer
            answer.close()
            time.sleep(0.2)


def prefect_client(settings: Settings) -> httpx.Client:
    """A client of the Prefect server of these settings, logged in."""
    return Logged(
        base_url=settings.prefect_api,
        auth=services.prefect_login(settings),
        transport=Patient(),
        trust_env=False,
        timeout=_ANSWER_SECONDS,
    )


class Logged(httpx.Client):
    """Sends with each request what the server wants against forged ones, as soon as there is a server."""

    def request(self, *arguments: Any, **more: Any) -> httpx.Response:
        if "Prefect-Csrf-Token" not in self.headers and arguments[0] != "GET":
            self.headers.update(csrf.headers(self))
        return super().request(*arguments, **more)


def ask(client: httpx.Client, method: str, path: str, body: object = None) -> Any:
    """The answer of the server, which has to be a success."""
    answer = client.request(method, path, json=body).raise_for_status()
    return answer.json() if answer.content else None


def post(client: httpx.Client, path: str, body: object) -> Any:
    return ask(client, "POST", path, body)


def request_run(client: httpx.Client, deployment: str, **fields: Any) -> httpx.Response:
    """Ask for a run of a deployment, as the UI does: one run, however often the request has to be sent."""
    answer = client.get(f"/deployments/name/{deployment}").raise_for_status().json()["id"]
    body = {"state": {"type": "SCHEDULED"}, "idempotency_key": str(uuid4()), **fields}
    return client.post(f"/deployments/{answer}/create_flow_run", json=body)


def start_run(client: httpx.Client, deployment: str, **fields: Any) -> str:
    """The id of a new run of a deployment."""
    return str(request_run(client, deployment, **fields).raise_for_status().json()["id"])


def cancel_run(client: httpx.Client, run: str) -> None:
    post(client, f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})


@contextmanager
def temporary_server() -> Iterator[None]:
    """A server for flows that this process calls."""
    with prefect_test_harness(server_startup_timeout=PATIENCE):
        yield


def websocket_paths() -> list[str]:
    """The path of each websocket of the server's API."""
    return [route.path for router in API_ROUTERS for route in router.routes if isinstance(route, APIWebSocketRoute)]
