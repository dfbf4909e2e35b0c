"""A web server for the tests of locks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from tests.support.site import Site
from tests.support.waiting import serving


@pytest.fixture
def site() -> Iterator[Site]:
    it = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if it.together:
                it.together.wait()
            status, kind, body = it.answers.get(self.path, (404, "text/plain", b""))
            etag = f'"{hashlib.md5(body).hexdigest()}"'
            if status == 200 and self.headers.get("If-None-Match") == etag:
                status, body = 304, b""
            it.asked.append((self.path, status))
            head = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nETag: {etag}\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as port:
        it.url = f"http://127.0.0.1:{port}"
        yield it
