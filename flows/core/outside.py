"""HTTP to servers that aren't ours: each request has a limit in time as a whole, and each body one in bytes.

httpx limits each read alone: a server that sends a byte now and then is listened to for ever, and memory has no limit
at all. Here a body is read piece by piece, and the deadline holds below httpx, for each read and write of a connection.
Nothing is sent on to another address unless the caller asks for it.
"""

from __future__ import annotations

import math
import socket
import ssl
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import Any

import httpcore
import httpx

HOPS = 5  # redirects that are followed
REDIRECTS = (301, 302, 303, 307, 308)
READS = ("GET", "HEAD")
_CONNECT_SECONDS = 5.0
_ERROR_BYTES = 1 << 16  # of what a server says of its failure
_PIECE = 1 << 16  # bytes that are unpacked at once
_ROUNDING = 0.05  # seconds

Origin = tuple[str, str, int | None]  # scheme, host, port
# For a client that speaks HTTP alone. httpx reads all authorities for each client that isn't told: 20 ms of CPU.
NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True)
class Bounds:
    """Limits of a request: bytes of the answer's body, seconds from its beginning to the end of the answer."""

    size: int
    seconds: float


class TooLarge(httpx.RequestError):
    """A body has more bytes than it may."""

    def __init__(self, size: int) -> None:
        super().__init__(f"its answer is longer than {size} bytes")


class TooSlow(httpx.TimeoutException):
    """A request took longer than it may, as a whole."""


class Astray(httpx.RequestError):
    """A server sends us to where nobody follows."""


@dataclass(frozen=True)
class Answer:
    """The answer of a server; of a failure no more than the beginning."""

    method: str
    url: httpx.URL
    status: int
    headers: httpx.Headers
    content: bytes

    @property
    def text(self) -> str:
        """The content as text, whatever it is."""
        return self.content.decode("utf-8", "replace")

    @property
    def said(self) -> str:
        """The beginning of what it says, for a message: without line breaks and control characters."""
        return " ".join("".join(c if c.isprintable() else " " for c in self.text[:400]).split())


@dataclass(frozen=True)
class _Deadline:
    at: float
    seconds: float


_NEVER = _Deadline(math.inf, math.inf)
_deadline: ContextVar[_Deadline] = ContextVar("deadline", default=_NEVER)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Let all that is asked inside the block take no longer than this as a whole, nor than an outer block lets it."""
    mine, outer = _Deadline(monotonic() + seconds, seconds), _deadline.get()
    token = _deadline.set(min(mine, outer, key=lambda each: each.at))
    try:
        yield
    finally:
        _deadline.reset(token)


def origin(url: httpx.URL) -> Origin:
    """Scheme, host and port, which belong to one server alone."""
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def following(answer: Answer) -> httpx.URL:
    """Where a redirect leads.

    Raises:
        Astray: it leads from https to http, or to what isn't HTTP.
    """
    return joined(answer.url, answer.headers.get("location", ""))


def joined(url: httpx.URL, address: str) -> httpx.URL:
    """The address that a server names in its answer from `url`; raises as `following` does."""
    try:
        target = url.join(address).copy_with(userinfo=b"")
    except (httpx.InvalidURL, ValueError) as error:
        raise Astray(f"it sends us to {address[:200]!r}: {error}") from None
    if target.scheme not in ("http", "https") or not target.host:
        raise Astray(f"it sends us to {address[:200]!r}")
    if url.scheme == "https" and target.scheme == "http":
        raise Astray(f"it sends us from https to {str(target)[:200]!r}")
    return target


@cache
def _everybody() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


def trusted_by_default(url: str) -> ssl.SSLContext:
    """The authorities that httpx itself trusts, read once and only for https; for `verify` of a client."""
    return _everybody() if url.startswith("https:") else NOBODY


class Client:
    """Asks servers, and keeps connections open for the next question.

    Args:
        verify: whom TLS trusts; False: everybody.
        proxy: the proxy for all requests.
        trust_env: take proxies from the environment.
        at_once: connections at most.
    """

    def __init__(
        self, verify: ssl.SSLContext | bool, *, proxy: str = "", trust_env: bool = True, at_once: int = 100
    ) -> None:
        self._client = httpx.Client(
            verify=verify,
            proxy=proxy or None,
            trust_env=trust_env,
            limits=httpx.Limits(max_connections=at_once, max_keepalive_connections=20),
        )
        keep_deadlines(self._client)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def exchange(
        self,
        method: str,
        url: httpx.URL | str,
        bounds: Bounds,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | Iterable[bytes] | None = None,
        sink: Callable[[bytes], object] | None = None,
    ) -> Answer:
        """Send a request and read the answer, whatever it is.

        Args:
            method: GET, HEAD, …
            url: the whole address.
            bounds: the limits in bytes and seconds.
            headers: of the request.
            content: the body of the request; it may be taken more than once.
            sink: gets the body of a 200 piece by piece; without it the body is in the answer.

        Raises:
            TooLarge: the body has more bytes than it may.
            TooSlow: it takes longer than it may.
            httpx.RequestError: the connection fails, or it isn't HTTP.
        """
        with within(bounds.seconds):
            try:
                return self._exchange(method, url, bounds, headers, content, sink)
            except httpx.TimeoutException:
                deadline = _deadline.get()
                if monotonic() < deadline.at - _ROUNDING:
                    raise
                raise TooSlow(f"it took longer than {deadline.seconds:g} s") from None

    def fetch(
        self,
        method: str,
        url: httpx.URL | str,
        bounds: Bounds,
        *,
        headers: Mapping[str, str] | None = None,
        private: Mapping[str, str] | None = None,
        sink: Callable[[bytes], object] | None = None,
    ) -> Answer:
        """As `exchange`, and follow redirects.

        Args:
            method: GET or HEAD.
            url: the whole address.
            bounds: the limits in bytes and seconds, with all redirects.
            headers: of each request.
            private: further headers, which only the origin of `url` gets.
            sink: as of `exchange`.

        Raises:
            Astray: a redirect leads from https to http, to what isn't HTTP, or nowhere in the end.
        """
        at = httpx.URL(url)
        home = origin(at)
        with within(bounds.seconds):
            for _ in range(HOPS + 1):
                more = (private or {}) if origin(at) == home else {}
                answer = self.exchange(method, at, bounds, headers={**(headers or {}), **more}, sink=sink)
                if answer.status not in REDIRECTS:
                    return answer
                at = following(answer)
        raise Astray(f"it sends us on more than {HOPS} times")

    def _exchange(
        self,
        method: str,
        url: httpx.URL | str,
        bounds: Bounds,
        headers: Mapping[str, str] | None,
        content: bytes | Iterable[bytes] | None,
        sink: Callable[[bytes], object] | None,
    ) -> Answer:
        patience = httpx.Timeout(bounds.seconds, connect=min(_CONNECT_SECONDS, bounds.seconds))
        sent_headers = {"Accept-Encoding": "gzip", **(headers or {})}
        request = self._client.build_request(method, url, headers=sent_headers, content=content, timeout=patience)
        with closing(self._client.send(request, stream=True, follow_redirects=False)) as answer:
            body = list[bytes]()
            if answer.status_code != 200:
                _take(beginning(answer, _ERROR_BYTES), body.append)
            elif method != "HEAD":
                _take(whole(answer, bounds.size), sink or body.append)
        return Answer(method, request.url, answer.status_code, answer.headers, b"".join(body))


def _take(pieces: Iterable[bytes], sink: Callable[[bytes], object]) -> None:
    for piece in pieces:
        sink(piece)


def whole(answer: httpx.Response, size: int) -> Iterator[bytes]:
    """The body of an answer that was not read yet, piece by piece; it is refused as soon as it is too long.

    Raises:
        TooLarge: it has more than `size` bytes.
    """
    announced = answer.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > size:
        raise TooLarge(size)
    remaining = size
    for piece in _unpacked(answer):
        remaining -= len(piece)
        if remaining < 0:
            raise TooLarge(size)
        yield piece


def beginning(answer: httpx.Response, size: int) -> Iterator[bytes]:
    """The first bytes of a body that was not read yet."""
    for piece in _unpacked(answer):
        yield piece[:size]
        size -= len(piece)
        if size <= 0:
            return


def _unpacked(answer: httpx.Response) -> Iterator[bytes]:
    """The body as it was before it was packed for the way; never much more of it at once than came by the wire."""
    packed = answer.headers.get("content-encoding", "identity").lower()
    if packed in ("", "identity"):
        yield from answer.iter_raw()
        return
    if packed not in ("gzip", "x-gzip"):
        raise httpx.DecodingError(f"its answer is packed by {packed[:40]!r}, which nobody asked for")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    for piece in answer.iter_raw():
        rest = piece
        while rest and not unpacker.eof:
            try:
                yield unpacker.decompress(rest, _PIECE)
            except zlib.error as error:
                raise httpx.DecodingError(f"its answer can't be unpacked: {error}") from None
            rest = unpacker.unconsumed_tail
    if not unpacker.eof:
        raise httpx.DecodingError("its packed answer has no end")


# --- Deadlines of connections ----------------------------------------------------------------------------------------


def keep_deadlines(client: httpx.Client) -> None:
    """Let all connections of a client of httpx keep the deadline of whoever uses them (see `within`).

    httpx lets nobody choose the backend of its pools, which httpcore does; a test holds that it is taken.
    """
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            pool: Any = transport._pool
            pool._network_backend = _Backend(pool._network_backend)


def _left(timeout: float | None) -> float:
    """Seconds that one read, write or handshake may take."""
    remaining = _deadline.get().at - monotonic()
    if remaining <= 0:
        raise httpcore.ReadTimeout("it took too long")
    return remaining if timeout is None else min(remaining, timeout)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_tcp(host, port, _left(timeout), local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._backend.connect_unix_socket(path, _left(timeout), socket_options))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        # Of TLS inside of TLS (a proxy that speaks https), the socket is only that of the outer one.
        nested = isinstance(stream.get_extra_info("ssl_object"), ssl.SSLObject)
        self._socket: socket.socket | None = None if nested else stream.get_extra_info("socket")

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._socket is None:
            self._stream.write(buffer, _left(timeout))
            return
        # httpcore would give each of the pieces that the other side takes all the time that is left.
        rest = memoryview(buffer)
        while rest:
            self._socket.settimeout(_left(timeout))
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError as error:
                raise httpcore.WriteTimeout(str(error)) from None
            except OSError as error:
                raise httpcore.WriteError(str(error)) from None

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
