"""The waiting page answers in the place of sessions that are away."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.leases import held
from flows.core.settings import Settings
from flows.gateway import routes
from flows.migrations.journal import Journal
from flows.sessions.lifecycle import Sessions
from flows.waiting_page import page
from flows.waiting_page.status import LOGIN_AWAY, AwayStatus, Seen, Why, tell

logger = logging.getLogger("refit.waiting-page")

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# How often it is looked whether a session that ought to run has come back by itself.
AGAIN_SECONDS = 5.0
# A status is kept so long: everybody's browser asks, and not every answer needs the database.
CACHE_SECONDS = 0.5
# Moves whose downtimes say how long one takes.
LATELY = 20


@dataclass(frozen=True)
class _CachedStatus:
    status: AwayStatus
    at: float


class WaitingPage:
    """Knows why a session is away."""

    def __init__(self, settings: Settings, database: Engine) -> None:
        self.settings, self._database = settings, database
        self.sessions, self.journal = Sessions.open(settings, database), Journal(database)
        self._cache: dict[str, _CachedStatus] = {}
        self._looked: dict[str, float] = {}

    @classmethod
    def open(cls, settings: Settings) -> WaitingPage:
        """The waiting page of these settings."""
        return cls(settings, open_database(settings.database))

    @property
    def has_hub(self) -> bool:
        """Whether people who come to no session in particular can log in somewhere."""
        return self.settings.hub_wanted

    def status_of(self, name: str) -> AwayStatus:
        """Why a session is away."""
        cached = self._cache.get(name)
        if cached is None or time.monotonic() > cached.at + CACHE_SECONDS:
            cached = self._cache[name] = _CachedStatus(tell(self._seen(name)), time.monotonic())
            if cached.status.why is Why.missing:
                self.look_for(name)
        if cached.status.why is Why.unknown:
            self._cache.pop(name, None)  # anybody can think of names
        return cached.status

    def look_for(self, name: str) -> None:
        """Tell the gateway where a session is, if it runs after all; not again within some seconds."""
        if time.monotonic() < self._looked.get(name, 0.0) + AGAIN_SECONDS:
            return
        self._looked[name] = time.monotonic()
        try:
            self.sessions.tell_gateway_of(name)
        except RefitError as error:
            logger.warning("%s could not be looked for: %s", name, error)

    def _seen(self, name: str) -> Seen:
        if (intent := self.sessions.store.intent(name)) is None:
            return Seen(name, None)
        should_run, wanted_since = intent
        page = routes.page(name) if self.has_hub else ""
        busy = f"session {name}" in held(self._database, f"session {name}")
        for move in self.journal.unfinished(name):
            downtimes = self.journal.downtimes(LATELY)
            return Seen(name, should_run, wanted_since, busy, move, self.journal.entries(move), downtimes, page)
        return Seen(name, should_run, wanted_since, busy, page=page)


def response(status: AwayStatus, *, html: bool) -> Response:
    """The response to the person who came."""
    content = page.as_html(status) if html else page.as_json(status)
    kind = "text/html" if html else "application/json"
    return Response(content, page.status_code(status), page.headers(status), kind)


def application(waiting_page: WaitingPage) -> Starlette:
    """Answers every path of every session. The gateway also asks for those whose request has broken off."""

    def health(_: Request) -> Response:
        return Response("ok", media_type="text/plain")

    def away(request: Request) -> Response:
        if request.url.path == "/" and waiting_page.has_hub:
            return RedirectResponse(f"{routes.HUB}/", 302)
        wants_page = "text/html" in request.headers.get("accept", "")
        if waiting_page.has_hub and routes.is_of_people(request.url.path):
            return response(LOGIN_AWAY, html=wants_page)
        return response(waiting_page.status_of(routes.session(request.url.path)), html=wants_page)

    return Starlette(routes=[Route("/health", health), Route("/{path:path}", away, methods=METHODS)])
