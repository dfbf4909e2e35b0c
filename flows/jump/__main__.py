"""Runs the jump host in the working directory: `refit up` starts it there."""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn
from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flows.core.database import open_database
from flows.core.settings import Settings, load
from flows.core.waiting import forever
from flows.host.sockets import private_listener
from flows.jump.addresses import LOOK_SECONDS as ADDRESSES_SECONDS
from flows.jump.addresses import Addresses
from flows.jump.authorized_keys_socket import AuthorizedKeysServer
from flows.jump.certificates import LOOK_SECONDS as CERTIFICATE_SECONDS
from flows.jump.certificates import Certificates
from flows.jump.connection_monitor import LOOK_SECONDS, NEWCOMERS_SECONDS, ConnectionMonitor
from flows.jump.sandbox import Sandbox
from flows.jump.session_authorized_keys import SessionAuthorizedKeys
from flows.sessions.lifecycle import Sessions

logger = logging.getLogger("refit.jump")

SESSION_KEYS_SECONDS = 1.0
# Seconds without a look, after which the monitor no longer does its work.
STALE_SECONDS = 10.0


class Repeated:
    """Something that is done again and again, in a thread of its own; that it fails doesn't end it."""

    def __init__(self, work: Callable[[], None], seconds: float) -> None:
        self._work, self._seconds = work, seconds
        self.done = time.monotonic()
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        def look() -> None:
            self._work()
            self.done = time.monotonic()

        def tell(error: Exception) -> None:
            logger.error("a look failed", exc_info=error)

        forever(look, tell, pause=self._seconds, longest=self._seconds)


def main() -> None:
    """Serve until this process is told to end, or its sshd ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("refit.command").setLevel(logging.WARNING)
    settings = load()
    database, sandbox = open_database(settings.database), Sandbox(settings)
    sandbox.prepare()
    sessions = Sessions.open(settings, database)
    addresses, certificates = Addresses(sessions), Certificates(lambda: _opened(sessions, settings, database))
    monitor = ConnectionMonitor(settings, database, addresses, sandbox, certificates)
    keys = SessionAuthorizedKeys(settings, database, lambda: _opened(sessions, settings, database), monitor.kept)
    monitor.look()
    server = AuthorizedKeysServer(sandbox.socket, sandbox.uid, monitor.answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    looks = Repeated(monitor.look, LOOK_SECONDS)
    Repeated(monitor.look_at_newcomers, NEWCOMERS_SECONDS)
    Repeated(certificates.look, CERTIFICATE_SECONDS)
    Repeated(addresses.look, ADDRESSES_SECONDS)
    Repeated(keys.look, SESSION_KEYS_SECONDS)
    sshd = sandbox.start()

    def end_with_sshd() -> None:
        code = sshd.wait()
        logger.error("sshd has ended with code %d", code)
        os._exit(1)  # so that it is seen by everybody who asks how the service is

    threading.Thread(target=end_with_sshd, daemon=True).start()

    health = _health(settings, looks)
    config = uvicorn.Config(
        Starlette(routes=[Route("/health", health)]), ws="none", access_log=False, log_level="error"
    )
    uvicorn.Server(config).run(sockets=[private_listener(Path("socket"))])
    sys.exit(0)


def _opened(sessions: Sessions, settings: Settings, database: Engine) -> Sessions:
    """The sessions for a look.

    Where they run on this machine, what an engine remembers of containers is for the one who acts on them. A cluster is
    followed by one engine.
    """
    return Sessions.open(settings, database) if sessions.engine.on_this_machine else sessions


def _health(settings: Settings, looks: Repeated) -> Callable[[Request], Response]:
    """The answer to whoever asks whether the service does its work."""
    listening = threading.Event()

    def health(_: Request) -> Response:
        # Asked once: sshd writes a line about each connection that doesn't log in. If it ends, so does this process.
        if not listening.is_set() and _listens(settings.bind_address, settings.jump_port):
            listening.set()
        works = listening.is_set() and time.monotonic() - looks.done < STALE_SECONDS
        return Response("ok" if works else "not yet", 200 if works else 503, media_type="text/plain")

    return health


def _listens(address: str, port: int) -> bool:
    """Whether sshd takes connections: it says its version to everybody."""
    seen = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    try:
        with socket.create_connection((seen, port), 2.0) as trial:
            return trial.recv(4) == b"SSH-"
    except OSError:
        return False


main()
