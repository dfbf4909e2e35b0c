"""The sockets by which sessions reach the API: one for each, at which it may ask about itself, and nothing else.

The person is the session's owner, whoever works in it: a guest acts as the session's user, too. A session has few
connections at a time, and none for long, so that none keeps the page from others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from flows.sessions import own_folder
from flows.sessions.inside.folder import SOCKET
from flows.sessions.store import Store
from flows.web.my_sessions.api import handler
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.verbs.context import ONE, VerbContext
from flows.web.my_sessions.verbs.table import VERBS
from flows.web.people.scopes import Scope

logger = logging.getLogger("refit.my-sessions")

# Of one session at a time, and seconds after which one is closed, whatever it does.
CONNECTIONS, SECONDS = 8, 60.0
_LOOK_SECONDS = 2.0
_RIGHTS = frozenset({Scope.read, Scope.updates})
# The kernel's `struct ucred` (unix(7)): pid, uid, gid.
_PEER = struct.Struct("=iII")


class Place(NamedTuple):
    """The folder of a session, in which its socket is, and the user who may write to it."""

    session: str
    uid: int
    folder: Path
    inode: int  # a session that was removed and made again has another folder at the same path


class InsideSockets:
    """Listens for all sessions that have a folder for that."""

    def __init__(self, context: VerbContext) -> None:
        self._context = context
        self._settings, self._store = context.settings, Store(context.database)
        self._servers: dict[Place, asyncio.AbstractServer] = {}

    async def keep(self) -> None:
        """Listen for each session as long as there is one; ends when it is cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            for server in self._servers.values():
                server.close()

    async def _look(self) -> None:
        try:
            places = await run_in_threadpool(self._places)
        except Exception:  # the database is asked again soon
            logger.exception("the sessions that may ask from inside aren't known")
            return
        for place in self._servers.keys() - places:
            self._servers.pop(place).close()
        for place in places - self._servers.keys():
            try:
                self._servers[place] = await listening(self._context, place)
            except OSError as error:
                logger.warning("%s can't ask from inside: %s", place.session, error)

    def _places(self) -> frozenset[Place]:
        folders = [(session, own_folder.api(self._settings, session.name)) for session in self._store.sessions()]
        return frozenset(
            Place(session.name, session.uid, folder, folder.stat().st_ino)
            for session, folder in folders
            if folder.is_dir()
        )


async def listening(context: VerbContext, place: Place) -> asyncio.AbstractServer:
    """A server at the socket of one session.

    Raises:
        OSError: there can't be a socket.
    """
    config = uvicorn.Config(
        _application(context, place.session),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=5,
    )
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    return await loop.create_unix_server(
        lambda: _Bounded(config, state, {}, place.uid), sock=_listener(place.folder), backlog=CONNECTIONS
    )


class _Bounded(H11Protocol):
    """A connection of this session's user, one of few, and not for ever."""

    def __init__(self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any], uid: int) -> None:
        super().__init__(config, state, app_state)
        self._uid = uid

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if _user(transport) != self._uid or len(self.connections) >= CONNECTIONS:
            transport.abort()
            return
        super().connection_made(transport)
        self.loop.call_later(SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.connections:
            super().connection_lost(exc)


def _user(transport: asyncio.BaseTransport) -> int:
    peer = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(peer)[1])


def _listener(folder: Path) -> socket.socket:
    """A socket that every user may write to; the kernel says which user calls."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    listener = socket.socket(socket.AF_UNIX)
    # Paths of sockets have 107 bytes at most, those of folders more.
    path = Path("/proc/self/fd", str(opened), SOCKET)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o666)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(opened)
    return listener


def _application(context: VerbContext, name: str) -> Starlette:
    def identify(_: Request) -> tuple[Caller, str]:
        return caller(context, name), name

    verbs = [verb for verb in VERBS if verb.inside]
    path = {verb.name: verb.path.replace(ONE, "/session") for verb in verbs}
    return Starlette(
        routes=[Route(path[verb.name], handler(verb, context, identify), methods=[verb.method]) for verb in verbs]
    )


def caller(context: VerbContext, name: str) -> Caller:
    """The owner of a session, as somebody who asks from inside of it.

    Raises:
        Problem: it belongs to nobody.
    """
    if not (owner := Store(context.database).owners().get(name)):
        raise Problem(Code.refused, "This session belongs to nobody.", hint="the operator can give it to you.")
    return Caller(owner, _RIGHTS, session=name)
