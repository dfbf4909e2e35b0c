"""Programs in containers of Pods, spoken to through the API server by one connection each."""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import httpx2
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.typing import Subprotocol

from flows.sessions.kubernetes.refusals import ClusterError
from flows.sessions.kubernetes.tls import OneAtATime

_INPUT, _OUTPUT, _ERRORS, _STATUS = range(4)
_TAIL = 2000
# Newer servers also speak v5, which adds nothing but the end of an input: `slot write` is told its length.
_PROTOCOL = Subprotocol("v4.channel.k8s.io")
# Failures are raised. The library logs bytes that come after the end as well, with a traceback.
_UNHEARD = logging.Logger("websockets", logging.CRITICAL)
# Bytes of one message; the API server's are a few dozen kilobytes at most.
_MESSAGE = 1 << 20
# The protocol can't end an input, so that the length of it comes first, in a line. Nothing begins before that line.
_RUN = 'read -r n || exit; if [ "$n" -gt 0 ]; then head -c "$n" | "$@"; else exec "$@" </dev/null; fi'
_TALK = 'read -r n || exit; exec "$@"'


def begun_by_a_line(argv: Sequence[str], talks: bool) -> list[str]:
    """The call of a program that begins with the first line of its input: how many bytes follow, unless it talks."""
    return ["/bin/sh", "-c", _TALK if talks else _RUN, "sh", *argv]


class Program:
    """A program in a container of a Pod, spoken to through the API server."""

    def __init__(self, socket: Connection, argv: Sequence[str]) -> None:
        self._socket, self._argv = socket, argv
        self._errors = b""

    def write(self, data: bytes) -> None:
        """Send something to its standard input."""
        self._socket.send(bytes((_INPUT,)) + data)

    def output(self, limit: float, most: int) -> Iterator[bytes]:
        """Its standard output as it comes, until it has ended.

        Args:
            limit: seconds that it may take.
            most: bytes that it may write, on standard output and standard error together.

        Raises:
            ClusterError: it has failed, takes longer, or writes more.
        """
        deadline, written = time.monotonic() + limit, 0
        while True:
            channel, part = self._message(deadline, limit)
            written += len(part)
            if written > most:
                raise ClusterError(f"{self._argv[0]} wrote more than {most} bytes in its session, and was given up.")
            if channel == _STATUS:
                self._check(json.loads(part))
                return
            if channel == _OUTPUT and part:
                yield part
            if channel == _ERRORS:
                self._errors = (self._errors + part)[-_TAIL:]

    def _message(self, deadline: float, limit: float) -> tuple[int, bytes]:
        try:
            message = self._socket.recv(timeout=max(0.0, deadline - time.monotonic()), decode=False)
        except TimeoutError:
            raise ClusterError(
                f"{self._argv[0]} took longer than {limit:g} s in its session, and was given up."
            ) from None
        return message[0], message[1:]

    def _check(self, status: Mapping[str, Any]) -> None:
        if status.get("status") == "Success":
            return
        causes = {
            cause.get("reason"): cause.get("message") for cause in (status.get("details") or {}).get("causes", ())
        }
        code = causes.get("ExitCode")
        ended = f"ended with exit code {code}" if code else "could not be run"
        raise ProgramEnded(
            f"{self._argv[0]} {ended} in its session.",
            why=self._errors.decode(errors="replace").strip() or str(status.get("message", "")),
            code=int(code or -1),
        )


class ProgramEnded(ClusterError):
    """A program in a container has failed.

    Attributes:
        code: its exit code; -1: it could not be run.
    """

    def __init__(self, what: str, *, why: str, code: int) -> None:
        super().__init__(what, why=why)
        self.code = code


def socket(request: httpx2.Request, auth: httpx2.Auth | None, verify: ssl.SSLContext, seconds: float) -> Connection:
    """A websocket with the credentials and certificates of other requests; a thread of its own reads from it.

    Args:
        request: the one that a websocket is asked for with.
        auth: adds credentials to it; none: it needs none.
        verify: the certificates.
        seconds: for which the handshake may last.

    Raises:
        TimeoutError: it lasts longer.
        InvalidHandshake: the server refuses.
    """
    if auth:
        request = next(auth.sync_auth_flow(request))
    headers = {name: value for name, value in request.headers.items() if name == "authorization"}
    return connect(
        str(request.url.copy_with(scheme="wss")),
        ssl=cast("ssl.SSLContext", OneAtATime(verify)),  # of which nothing else is asked there
        additional_headers=headers,
        subprotocols=[_PROTOCOL],
        open_timeout=seconds,
        close_timeout=1,
        max_size=_MESSAGE,
        logger=_UNHEARD,
        # Its tables take more memory than all else of a connection, of which hundreds are open. No kubelet has it.
        compression=None,
        proxy=None,
    )
