"""Answers Prometheus: `python -m flows.metrics.serving`, which `refit up` starts where the settings name a port."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Event
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import generate_latest, make_wsgi_app, write_to_textfile

from flows.core.settings import Settings, load
from flows.core.threads import answering
from flows.metrics.exposition import registry
from flows.metrics.facts import look

HEALTH = "/favicon.ico"  # the one path at which nothing is counted


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each question."""

    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def served(settings: Settings, port: int) -> Iterator[None]:
    """Answer on this loopback port inside the `with` block; each question is a look of its own."""
    app = guarded(make_wsgi_app(registry(partial(look, settings))), settings.metrics_token.get_secret_value())
    with answering(make_server("127.0.0.1", port, app, _Server, _Silent)):
        yield


def guarded(app: WSGIApplication, token: str) -> WSGIApplication:
    """Answers whoever has the token; everybody, where there is none."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1")
        if token and environ["PATH_INFO"] != HEALTH and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b"metrics_token"]
        return app(environ, start)

    return answer


def text(settings: Settings) -> str:
    """Everything, in Prometheus' own format."""
    return generate_latest(registry(partial(look, settings))).decode()


def write(settings: Settings, file: Path) -> None:
    """Write everything into a file at once, as node_exporter's textfile collector wants it."""
    write_to_textfile(str(file), registry(partial(look, settings)))


if __name__ == "__main__":
    chosen = load()
    with served(chosen, chosen.metrics_port):
        Event().wait()
