"""The authorizer between the Hub and the gateway: a service of its own, which does its work while the Hub is away.

It leads from `/user/ada/…` to the session, and tells the Hub of sessions that it doesn't know: those that were made or
started in the shell.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import load
from flows.core.waiting import forever
from flows.gateway import routes
from flows.host.sockets import private_listener
from flows.sessions.model import Session
from flows.sessions.people.share_records import Grants
from flows.web.authorizer.admission import ARRIVAL, CALLBACK, GUEST, Admission
from flows.web.authorizer.rights_watch import RightsWatch
from flows.web.people.client import HubClient, Person
from flows.web.people.servers import RUNS, Servers

logger = logging.getLogger("refit.authorizer")

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
LOOK_SECONDS = 5.0
# The Hub is asked for its servers at least so often, though nothing has changed that the authorizer knows of.
ASK_SECONDS = 30.0
# After an outage of the Hub, news of rights wait no longer than this.
LONGEST_SECONDS = 5.0
# Seconds after which connections are closed of somebody who lost a session, at most.
END_SECONDS = 1.0


def place(path: str, servers: Mapping[str, Mapping[str, Session]]) -> tuple[str, str]:
    """The session that an address of the Hub is about, and what stands behind it; no session: there is none. Pure.

    Args:
        path: as it was asked for, still quoted, e.g. `/user/ada/gpu/lab`.
        servers: person → name of the server → session.
    """
    _, _, person, *rest = [*path.split("/"), ""][: path.count("/") + 1]
    own = servers.get(unquote(person), {})
    if rest and rest[0] and unquote(rest[0]) in own:
        return own[unquote(rest[0])].name, "/".join(["", *rest[1:]])
    return (own[""].name, "/".join(["", *rest])) if "" in own else ("", "")


def led_to(path: str, query: str, servers: Mapping[str, Mapping[str, Session]], up: frozenset[str]) -> str:
    """Where an address of the Hub leads: to the session if it is up, else to the Hub's page about it. Pure."""
    session, rest = place(path, servers)
    target = f"{routes.path(session)}{rest}" if session in up else f"{routes.HUB}{path}"
    return f"{target}?{query}" if query else target


def unknown(
    people: tuple[Person, ...], servers: Mapping[str, Mapping[str, Session]], up: frozenset[str]
) -> list[tuple[str, str, bool]]:
    """The changes that the Hub has to hear: person, server, and whether its session is up. Pure."""
    return [
        (person.name, name, session.name in up)
        for person in people
        for name, session in servers.get(person.name, {}).items()
        if not person.servers.get(name, False) and (session.name in up or (name and name not in person.servers))
    ]


class Authorizer:
    """Knows whose sessions are which servers, and whether they are up."""

    def __init__(self, servers: Servers, hub: HubClient, watch: RightsWatch) -> None:
        self._servers, self._hub, self._watch = servers, hub, watch
        self._settled: tuple[float, object] = (-math.inf, None)

    def lead(self, request: Request) -> Response:
        """Send somebody who comes to an address of the Hub to where they want to go."""
        servers = self._servers.all()
        session, _ = place(request.scope["raw_path"].decode("ascii"), servers)
        up = frozenset({session} if session and self._servers.is_up(session) else ())
        path = request.scope["raw_path"].decode("ascii")
        # 307 keeps the method: programs write by these addresses, too.
        return RedirectResponse(led_to(path, request.url.query, servers, up), 307)

    def tell_hub(self) -> None:
        """Let the Hub know of the sessions of its people that were made or started elsewhere.

        Where nothing has changed since it knew of all, it isn't asked: it lists all people with their servers.
        """
        servers = self._servers.all()
        names = {person: {server: record.name for server, record in own.items()} for person, own in servers.items()}
        up = frozenset(name for own in names.values() for name in own.values() if self._servers.runs(name))
        at, settled = self._settled
        if (state := (self._watch.version, names, up)) == settled and time.monotonic() < at + ASK_SECONDS:
            return
        changes = unknown(self._hub.people(), servers, up)
        for person, server, runs in changes:
            logger.info("the Hub is told of %s's server %r", person, server)
            self._hub.note(person, server, {RUNS: True} if runs else None)
        self._settled = time.monotonic(), None if changes else state


def application(authorizer: Authorizer, admission: Admission) -> Starlette:
    """The application that answers at the socket."""

    def health(_: Request) -> Response:
        return Response("ok", media_type="text/plain")

    way = [
        Route("/admit", admission.admit),
        Route(CALLBACK, admission.welcome),
        Route(ARRIVAL, admission.arrive),
        Route(GUEST, admission.tell_guest, methods=["GET", "POST"]),
    ]
    return Starlette(
        routes=[Route("/health", health), *way, Route("/user/{path:path}", authorizer.lead, methods=METHODS)]
    )


def _tell_failure(error: Exception) -> None:
    if isinstance(error, RefitError):
        logger.warning("%s", error)
    else:
        logger.error("the authorizer could not complete a round of its checks", exc_info=error)


def _start_tasks(tasks: Mapping[Callable[[], None], float]) -> None:
    """Do each of them again and again, with so many seconds between; none waits for another."""
    for work, seconds in tasks.items():
        doing = partial(forever, work, _tell_failure, pause=seconds, longest=LONGEST_SECONDS)
        threading.Thread(target=doing, daemon=True).start()


def main() -> None:
    """Answer until this process is told to end."""
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Podman is asked every few seconds.
    logging.getLogger("refit.command").setLevel(logging.WARNING)
    settings = load()
    servers, hub, database = Servers(settings), HubClient(settings), open_database(settings.database)
    watch = RightsWatch(settings, database, servers, hub)
    admission = Admission(settings, servers, hub, watch, Grants(database))
    authorizer = Authorizer(servers, hub, watch)
    tasks = dict.fromkeys((authorizer.tell_hub, watch.end_shares, watch.end_offers), LOOK_SECONDS)
    _start_tasks({**tasks, watch.follow: 0.0, watch.end_visits: END_SECONDS})
    # No log of accesses, for addresses may hold what is nobody else's business.
    config = uvicorn.Config(
        application(authorizer, admission), ws="none", access_log=False, log_level="error", server_header=False
    )
    uvicorn.Server(config).run(sockets=[private_listener(Path("socket"))])


if __name__ == "__main__":
    main()
