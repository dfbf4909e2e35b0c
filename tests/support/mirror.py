"""Ways to Debian's archive from this machine: a mirror by https, and a proxy for apt. Both only pass on."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

import httpx

from tests.support.certificates import Authority
from tests.support.waiting import serving

ARCHIVE = "http://deb.debian.org"
_PASSED_ON = ("content-type", "content-length", "last-modified", "etag")


@dataclass
class Way:
    """Where it is, and what was asked for by it."""

    url: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def way_to_debian(authority: Authority | None = None, address: str = "127.0.0.1") -> Iterator[Way]:
    """Serve what the archive has: by https, if `authority` is given, else by http and as a proxy."""
    way = Way("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = self.path if self.path.startswith("http") else ARCHIVE + self.path
            way.asked.append(url)
            body = {name: self.headers[name] for name in ("If-Modified-Since", "Range") if name in self.headers}
            with client.stream("GET", url, headers=body) as answer:
                self.send_response(answer.status_code)
                for name in _PASSED_ON:
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                self.end_headers()
                for chunk in answer.iter_raw():
                    self.wfile.write(chunk)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if authority else None
    if authority and context:
        context.load_cert_chain(authority.certificate, authority.key)
    with (
        httpx.Client(timeout=60, follow_redirects=True, headers={"Accept-Encoding": "identity"}) as client,
        serving(Handler, context, address) as port,
    ):
        way.url = f"{'https' if authority else 'http'}://{address}:{port}"
        yield way
