"""An IDE that redirects."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit


class Leading(BaseHTTPRequestHandler):
    """An IDE that redirects to wherever it is asked to, with the method that came."""

    def do_GET(self) -> None:
        """Redirect."""
        [to] = parse_qs(urlsplit(self.path).query).get("to", [""])
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(HTTPStatus.TEMPORARY_REDIRECT if to else HTTPStatus.OK)
        if to:
            self.send_header("Location", to.replace("PORT", str(self.server.server_address[1])))
        self.send_header("Content-Length", "0" if to else "7")
        self.end_headers()
        self.wfile.write(b"" if to else b"this is")

    do_POST = do_GET  # noqa: N815 - so the library calls it

    def log_message(self, *_: object) -> None:
        """Say nothing."""
