"""Runs the service at the socket that the gateway knows, in the working directory: `refit up` starts it there."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flows.core.settings import Settings, load
from flows.host.sockets import private_listener
from flows.web.my_sessions import api
from flows.web.my_sessions.callers import Callers
from flows.web.my_sessions.devices import Devices
from flows.web.my_sessions.inside import InsideSockets
from flows.web.my_sessions.login import Login
from flows.web.my_sessions.pages import Pages
from flows.web.my_sessions.verbs.context import VerbContext

# Requests that are answered at the same time; the others get 503.
_AT_ONCE = 200


def application(settings: Settings, context: VerbContext, callers: Callers) -> Starlette:
    """The application that answers at the socket."""

    def health(_: Request) -> Response:
        return Response("ok", media_type="text/plain")

    @asynccontextmanager
    async def listening_inside(_: Starlette) -> AsyncIterator[None]:
        keeping = asyncio.create_task(InsideSockets(context).keep())
        yield
        keeping.cancel()

    pages = Pages(context, Login(settings, callers), Devices(callers))
    routes = [Route("/health", health), *api.routes(context, callers), *pages.routes()]
    return Starlette(routes=routes, lifespan=listening_inside)


def main() -> None:
    """Answer until this process is told to end; actions that have begun come to their end first."""
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("refit.command").setLevel(logging.WARNING)
    settings = load()
    context = VerbContext(settings)
    # No log of accesses, for it is nobody else's business who looks at what.
    config = uvicorn.Config(
        application(settings, context, Callers(settings)),
        ws="none",
        access_log=False,
        log_level="error",
        server_header=False,
        limit_concurrency=_AT_ONCE,
    )
    uvicorn.Server(config).run(sockets=[private_listener(Path("socket"))])
    context.actions.close()


if __name__ == "__main__":
    main()
