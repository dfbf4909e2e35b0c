"""The only way out of a confined build: a socket at which the mirrors of the settings are reached, and nothing else.

A confined step has a network without any interface but loopback. A program in it (`in_build.py`) hands what comes to a
port there to this socket, which is mounted into the build. Names are looked up here, so no address can be given.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from flows.core.settings import Settings
from flows.core.threads import answering

SOCKET = "mirrors.sock"
_HEAD = 1 << 16  # bytes of a request's head
_CHUNK = 1 << 16
_IDLE = 120.0  # seconds in which neither side says anything
_CONNECTIONS = 128  # at once
_PYPI = ("https://pypi.org", "https://files.pythonhosted.org")
_NPM = "https://registry.npmjs.org"
_REQUEST = re.compile(rb"([A-Z]{3,7}) (\S{1,8192}) HTTP/1\.[01]\r\n")
_PORTS = {"http": 80, "https": 443}

Place = tuple[str, int]


def problem(settings: Settings) -> str:
    """Why the mirrors of the settings can't be given to a build that nobody vouches for; empty: they can. Pure."""
    urls = {
        "pip_index_url": settings.pip_index_url.get_secret_value(),
        "npm_registry": settings.npm_registry,
        "apt_proxy": settings.apt_proxy,
        "debian_mirror": settings.debian_mirror,
    }
    secret = [name for name, url in urls.items() if url and (urlsplit(url).username or urlsplit(url).password)]
    return f"{', '.join(secret)} has a login, which the build would see" if secret else ""


def places(settings: Settings) -> frozenset[Place]:
    """Host and port of each mirror of the settings. Pure."""
    index = settings.pip_index_url.get_secret_value()
    urls = [settings.debian_mirror, settings.npm_registry or _NPM, *((index,) if index else _PYPI)]
    return frozenset(place for url in urls if (place := _place(url)))


def _place(url: str) -> Place | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.hostname.lower().rstrip("."), port) if parts.hostname and port else None


@contextmanager
def serving(path: Path, settings: Settings) -> Iterator[None]:
    """Answer at a socket inside the `with` block."""
    server = _Server(path, places(settings), _place(settings.apt_proxy) if settings.apt_proxy else None)
    with answering(server, poll_seconds=0.1):
        path.chmod(0o666)  # it lies in a folder of root's alone; in the build, anybody may use it
        yield


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, allowed: frozenset[Place], upstream: Place | None) -> None:
        self.allowed, self.upstream, self.free = allowed, upstream, threading.Semaphore(_CONNECTIONS)
        # A socket's path has 108 bytes at most, and that of a workspace may have more.
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            super().__init__(f"/proc/self/fd/{folder}/{path.name}", _Handler)
        finally:
            os.close(folder)

    def handle_error(self, request: object, client_address: object) -> None:
        """A build that hangs up is nobody's trouble."""


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        """One connection: a tunnel, or one request."""
        if not self.server.free.acquire(blocking=False):
            return
        try:
            self.request.settimeout(_IDLE)
            with suppress(OSError):
                self._answer()
        finally:
            self.server.free.release()

    def _answer(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            part = self.request.recv(_CHUNK)
            if not part or len(head) > _HEAD:
                return
            head += part
        request = _REQUEST.match(head)
        method, target = (request[1], request[2].decode("latin-1")) if request else (b"", "")
        place = _place(f"https://{target}" if method == b"CONNECT" else target)
        if place not in self.server.allowed or place is None:
            self.request.sendall(b"HTTP/1.1 403 No mirror\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        upstream = self.server.upstream if method != b"CONNECT" else None
        with socket.create_connection(upstream or place, timeout=_IDLE) as other:
            if method == b"CONNECT":
                self.request.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                other.sendall(head.partition(b"\r\n\r\n")[2])
            else:
                other.sendall(head if upstream else _direct(head, target))
            _carry(self.request, other)


def _direct(head: bytes, target: str) -> bytes:
    """A request as a server takes it that is no proxy. Pure."""
    parts = urlsplit(target)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    line, _, rest = head.partition(b"\r\n")
    method, _, version = line.split(b" ")
    return b" ".join((method, path.encode("latin-1"), version)) + b"\r\n" + rest


def _carry(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until either side ends, or neither says anything."""
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while ready := selector.select(_IDLE):
            for source, _ in ready:
                if not (part := source.fileobj.recv(_CHUNK)):  # type: ignore[union-attr]
                    return
                source.data.sendall(part)
