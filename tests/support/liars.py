"""Servers that lie: a proxy in front of a registry that changes what it says; a host that notes what it is told."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import ClassVar, Self

from tests.support.waiting import serving

USER, PASSWORD = "ann", "a-word-that-nobody-else-hears"
WORD = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@dataclass(frozen=True)
class Said:
    """An answer of a registry; headers have small letters."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def but(self, status: int | None = None, body: bytes | None = None, **headers: str) -> Said:
        """The same with changes; an empty header is left out, and the length fits the body."""
        content = self.body if body is None else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        told = {**self.headers, "content-length": str(len(content)), **named}
        kept = {name: value for name, value in told.items() if value}
        return replace(self, status=status or self.status, headers=kept, body=content)


class Request(BaseHTTPRequestHandler):
    """A request to a liar, which may answer by itself whatever it likes."""

    protocol_version = "HTTP/1.1"
    body = b""

    def sent(self) -> bytes:
        """The body of the request, which buildah and skopeo send in chunks."""
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def answer(self, said: Said) -> None:
        """Send an answer as it stands."""
        self.send_response(said.status)
        for name, value in said.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said.body)

    def drip(self, piece: bytes, *, pause: Callable[[], object] = lambda: None) -> None:
        """Send the same piece again and again, until the other side hangs up."""
        self.close_connection = True
        with suppress(OSError):
            while True:
                self.wfile.write(piece)
                pause()

    def be_silent(self) -> None:
        """Say nothing until the other side hangs up."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.settimeout(60)
            self.rfile.read(1)

    def log_message(self, *_: object) -> None:
        """Nothing."""


# Gets what the registry has said, and returns what is said instead; None: it has answered by itself.
Lie = Callable[[Request, Said], Said | None]


def honest(_: Request, said: Said) -> Said:
    """No lie."""
    return said


def nothing(_: Request) -> bool:
    """No request."""
    return False


@dataclass
class Liar:
    """A proxy in front of the registry at a port, which asks for a password and lies.

    An upload that it swallows never gets to the registry: it says that it was stored.
    """

    upstream: int
    lie: Lie = honest
    swallows: Callable[[Request], bool] = nothing
    asked: list[str] = field(default_factory=list)
    port: int = 0
    tls: ssl.SSLContext | None = None
    needs_login: ClassVar[bool] = True

    @contextmanager
    def serve(self) -> Iterator[Self]:
        """Answer requests."""
        liar = self

        class Handler(Request):
            def pass_on(self) -> None:
                self.body = self.sent()
                liar.asked.append(f"{self.command} {self.path}")
                if liar.needs_login and self.headers.get("Authorization") != f"Basic {WORD}":
                    challenge = {"www-authenticate": 'Basic realm="here"', "content-length": "2"}
                    self.answer(Said(401, challenge, b"{}"))
                elif liar.swallows(self):
                    self.answer(Said(201, {"content-length": "0"}))
                elif told := liar.lie(self, liar.truth(self)):
                    with suppress(OSError):
                        self.answer(told)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on  # noqa: N815

        with serving(Handler, self.tls) as self.port:
            yield self

    def truth(self, request: Request) -> Said:
        """The answer of the registry."""
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        names = ("Accept", "Content-Type", "Host", "Range")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        try:
            connection.request(request.command, request.path, request.body or None, headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if self.tls and "location" in answer.headers:  # the registry knows nothing of TLS
            answer.headers.replace_header("location", answer.headers["location"].replace("http:", "https:"))
        dropped = ("connection", "date", "transfer-encoding")
        told = {name.lower(): value for name, value in answer.getheaders() if name.lower() not in dropped}
        return Said(
            answer.status, told if "content-length" in told else {**told, "content-length": str(len(body))}, body
        )


@dataclass
class Eavesdropper:
    """A host of somebody else: it writes down all that it is told."""

    reply: Callable[[Request], Said]
    told: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def serve(self) -> Iterator[Self]:
        """Answer requests."""
        eavesdropper = self

        class Handler(Request):
            def listen(self) -> None:
                self.body = self.sent()
                eavesdropper.told.append(f"{self.command} {self.path}\n{self.headers}")
                self.answer(eavesdropper.reply(self))

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = listen  # noqa: N815

        with serving(Handler) as self.port:
            yield self

    @property
    def knows(self) -> bool:
        """Whether it was told anything of a login."""
        heard = "\n".join(self.told).lower()
        return PASSWORD in heard or WORD.lower() in heard or "authorization:" in heard
