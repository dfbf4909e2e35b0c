"""TLS of which one thread reads while another writes. OpenSSL takes one call at a time for a connection, and Python
before 3.13 doesn't see to that: a crash of the whole process was seen.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, TypeVar

_Done = TypeVar("_Done")
_MILLISECONDS = 1000


class OneAtATime:
    """The part of a context that a client of websockets asks for: its sockets let one thread in at a time."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def wrap_socket(self, plain: socket.socket, server_hostname: str) -> TlsSocket:
        """The connection after its handshake.

        Raises:
            OSError: the handshake has failed.
        """
        return TlsSocket(self._context.wrap_socket(plain, server_hostname=server_hostname))


class TlsSocket:
    """The part of a socket that a client of websockets uses. It waits outside of OpenSSL."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        """A socket whose handshake is over."""
        self._socket, self._lock = connected, Lock()
        self._seconds: float | None = None
        self._waiting, self._closed = 0, False
        connected.setblocking(False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)  # addresses, for instance

    def settimeout(self, seconds: float | None) -> None:
        """Let calls that begin from now on take so many seconds; none: as long as they like."""
        self._seconds = seconds

    def recv(self, most: int) -> bytes:
        """Some bytes; none: the other side has ended it."""
        return self._when_ready(partial(self._socket.recv, most))

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        left = memoryview(data)
        while left:
            left = left[self._when_ready(partial(self._socket.send, left)) :]

    def shutdown(self, how: int) -> None:
        """Let nothing more through; a thread that waits is woken."""
        with self._lock:
            self._socket.shutdown(how)

    def close(self) -> None:
        """Give it up. A thread that waits is woken, and frees the number of the file.

        Else another connection could get that number, and be waited for in the place of this one.
        """
        with self._lock:
            self._closed = True
            if self._waiting:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            else:
                self._socket.close()

    def _when_ready(self, call: Callable[[], _Done]) -> _Done:
        until = None if self._seconds is None else time.monotonic() + self._seconds
        while True:
            with self._lock:
                if self._closed:
                    raise OSError(errno.EBADF, "The connection was closed.")
                try:
                    return call()
                except ssl.SSLWantReadError:
                    events = select.POLLIN
                except ssl.SSLWantWriteError:
                    events = select.POLLOUT
                self._waiting += 1
            try:
                self._wait(events, until)
            finally:
                with self._lock:
                    self._waiting -= 1
                    if self._closed and not self._waiting:
                        self._socket.close()

    def _wait(self, events: int, until: float | None) -> None:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("The connection took too long.")
        waiting = select.poll()
        waiting.register(self._socket, events)
        with suppress(InterruptedError):
            waiting.poll(None if left is None else left * _MILLISECONDS)
