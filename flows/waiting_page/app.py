"""The waiting page answers in the place of sessions that are away, and tells a new gateway where sessions are.

It also brings sessions back that a run has left closed, or away, when it was killed.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.leases import held
from flows.core.settings import Settings
from flows.core.waiting import forever
from flows.gateway import routes
from flows.host.sockets import remote_ends
from flows.migrations.journal import Journal
from flows.migrations.orphaned_moves import PATIENCE, IngressReopener, end_abandoned
from flows.migrations.snapshots import snapshot_schedule
from flows.migrations.steps import previous_containers
from flows.sessions.lifecycle import Sessions
from flows.waiting_page import page
from flows.waiting_page.status import LOGIN_AWAY, AwayStatus, Seen, Why, tell

# To import the steps of moves takes as long as all else, and this service carries hardly any out.
with lazily(globals()):
    from flows.migrations.drains import MachineDrains
    from flows.migrations.executor import MoveExecutor

logger = logging.getLogger("refit.waiting-page")

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
LOOK_SECONDS = 2.0
LONGEST_SECONDS = 60.0
# How often it is looked for containers that sessions had before, and whose time is over.
FORMER_SECONDS = 600.0
SNAPSHOT_SECONDS = 60.0
MACHINE_SECONDS = 5.0
# How often it is looked whether a session that ought to run has come back by itself.
AGAIN_SECONDS = 5.0
# A story is told so long: everybody's browser asks, and not every answer needs the database.
TOLD_SECONDS = 0.5
LATELY = 20


@dataclass(frozen=True)
class _Told:
    story: AwayStatus
    at: float


class WaitingPage:
    """Knows of all sessions why they are away."""

    def __init__(self, settings: Settings, database: Engine) -> None:
        self._settings, self._database = settings, database
        self._sessions, self._journal = Sessions.open(settings, database), Journal(database)
        self._doors, self._begun = IngressReopener(self._sessions, self._journal), now()
        self._told: dict[str, _Told] = {}
        self._looked: dict[str, float] = {}
        self._leaver: MachineDrains | None = None

    @classmethod
    def open(cls, settings: Settings) -> WaitingPage:
        """The waiting page of these settings."""
        return cls(settings, open_database(settings.database))

    @property
    def has_hub(self) -> bool:
        """Whether people who come to no session in particular can log in somewhere."""
        return self._settings.hub_wanted

    def story(self, name: str) -> AwayStatus:
        """Why a session is away."""
        story = self._told.get(name)
        if story is None or time.monotonic() > story.at + TOLD_SECONDS:
            story = self._told[name] = _Told(tell(self._seen(name)), time.monotonic())
            if story.story.why is Why.missing:
                self._look_for(name)
        if story.story.why is Why.unknown:
            self._told.pop(name, None)  # anybody can think of names
        return story.story

    def mind_gateway(self) -> None:
        """Tell a gateway where all sessions are if it has begun anew, and of those that died."""
        table = self._sessions.gateway.table()
        if table is not None and routes.COMPLETE not in table:
            self._sessions.tell_gateway()
        elif table is not None:
            self._sessions.gateway.stand(table)
        for name in knocked_at(table or {}):
            self._look_for(name)

    def mind_moves(self) -> None:
        """See to the sessions that a run which was killed has left closed, or away; `refit up` does so itself first."""
        if now() - self._begun < PATIENCE:
            return
        for name in self._doors.open(now()):
            logger.warning("%s is open again: the run that looked at it a last time was killed", name)
        for result in end_abandoned(self._journal, lambda: MoveExecutor.open(self._settings), now()):
            logger.warning("the move of %s, whose run was killed, has ended: %s", result.session, result.state)

    def mind_former(self) -> None:
        """Remove the containers that sessions had before they moved, when their time is over."""
        previous_containers.clear(self._sessions, self._journal, self._settings.migration.keep_hours)

    def mind_snapshots(self) -> None:
        """Take the snapshots of sessions that are due, and remove those that have outlived."""
        snapshot_schedule.mind(self._settings, self._sessions)

    def mind_machines(self) -> None:
        """Move sessions off machines that are to go down, and bring those back that have lost theirs."""
        if self._settings.in_cluster:
            self._leaver = self._leaver or MachineDrains(self._settings)
            self._leaver.run_once()

    def _look_for(self, name: str) -> None:
        if time.monotonic() < self._looked.get(name, 0.0) + AGAIN_SECONDS:
            return
        self._looked[name] = time.monotonic()
        try:
            self._sessions.tell_gateway_of(name)
        except RefitError as error:
            logger.warning("%s could not be looked for: %s", name, error)

    def _seen(self, name: str) -> Seen:
        if (intent := self._sessions.store.intent(name)) is None:
            return Seen(name, None)
        should_run, asked = intent
        page = routes.page(name) if self.has_hub else ""
        busy = f"session {name}" in held(self._database, f"session {name}")
        for move in self._journal.unfinished(name):
            downtimes = self._journal.downtimes(LATELY)
            return Seen(name, should_run, asked, busy, move, self._journal.entries(move), downtimes, page)
        return Seen(name, should_run, asked, busy, page=page)


def knocked_at(table: routes.Table) -> tuple[str, ...]:
    """The sessions to which the gateway wants to connect just now: with one that died, nobody says that it did."""
    sessions = {name: target for path, target in table.items() if (name := routes.session(path))}
    if not sessions:
        return ()  # to list all connections takes the kernel some 10 ms
    places = {f"http://{end.address}:{end.port}" for end in remote_ends() if end.waits}
    return tuple(name for name, target in sessions.items() if target in places)


def answer(story: AwayStatus, *, html: bool) -> Response:
    """The response to the person who came."""
    content = page.as_html(story) if html else page.as_json(story)
    kind = "text/html" if html else "application/json"
    return Response(content, page.status(story), page.headers(story), kind)


def door(waiting_page: WaitingPage) -> Starlette:
    """The application: every path of every session. The gateway also asks for those whose request has broken off."""

    def health(_: Request) -> Response:
        return Response("ok", media_type="text/plain")

    def away(request: Request) -> Response:
        if request.url.path == "/" and waiting_page.has_hub:
            return RedirectResponse(f"{routes.HUB}/", 302)
        wants_page = "text/html" in request.headers.get("accept", "")
        if waiting_page.has_hub and routes.is_of_people(request.url.path):
            return answer(LOGIN_AWAY, html=wants_page)
        return answer(waiting_page.story(routes.session(request.url.path)), html=wants_page)

    return Starlette(routes=[Route("/health", health), Route("/{path:path}", away, methods=METHODS)])


def start_minding(waiting_page: WaitingPage) -> None:
    """Let the waiting page mind its tasks for as long as this process lives; none of them waits for another."""
    tasks = {
        waiting_page.mind_gateway: LOOK_SECONDS,
        waiting_page.mind_moves: LOOK_SECONDS,
        waiting_page.mind_former: FORMER_SECONDS,
        waiting_page.mind_snapshots: SNAPSHOT_SECONDS,
        waiting_page.mind_machines: MACHINE_SECONDS,
    }
    for task, seconds in tasks.items():
        minding = partial(forever, task, _tell_failure, pause=seconds, longest=LONGEST_SECONDS)
        threading.Thread(target=minding, daemon=True).start()


def _tell_failure(error: Exception) -> None:
    logger.error("the waiting page couldn't reopen sessions or end interrupted moves", exc_info=error)
