"""The socket at which sshd asks about keys."""

from __future__ import annotations

import logging
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer

import psutil

logger = logging.getLogger("refit.jump")

SECONDS = 10.0
_MOST_BYTES = 256
# As many as there can be logins under way.
_AT_ONCE = 64
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}", re.ASCII)
_PEER = struct.Struct("3i")

Answer = Callable[[str, psutil.Process], str]


class AuthorizedKeysServer(ThreadingMixIn, UnixStreamServer):
    """Answers the user of the sshd, and nobody else."""

    daemon_threads = True
    request_queue_size = _AT_ONCE

    def __init__(self, place: Path, uid: int, answer: Answer) -> None:
        self.uid, self.answer, self.room = uid, answer, threading.BoundedSemaphore(_AT_ONCE)
        place.unlink(missing_ok=True)
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            # The path of a socket must be short, and that of the folder may be long.
            super().__init__(f"/proc/self/fd/{folder}/{place.name}", _Asked)
        finally:
            os.close(folder)
        place.chmod(0o666)


class _Asked(StreamRequestHandler):
    server: AuthorizedKeysServer
    timeout = SECONDS

    def handle(self) -> None:
        pid, uid, _ = _PEER.unpack(self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid != self.server.uid or not self.server.room.acquire(blocking=False):
            return
        try:
            with suppress(OSError, psutil.NoSuchProcess):
                fingerprint = self.rfile.readline(_MOST_BYTES).decode("ascii", "replace").strip()
                if _FINGERPRINT.fullmatch(fingerprint):
                    serving = psutil.Process(psutil.Process(pid).ppid())
                    # Where the client has gone just now, the first process of the namespace is the parent.
                    if serving.uids().real == self.server.uid:
                        self.wfile.write(self.server.answer(fingerprint, serving).encode())
        except Exception:
            logger.exception("a key can't be looked up")
        finally:
            self.server.room.release()
