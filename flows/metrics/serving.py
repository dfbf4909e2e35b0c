"""Answers Prometheus: `python -m flows.metrics.serving`, which `refit up` starts where the settings name a port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event

from prometheus_client import generate_latest, start_http_server, write_to_textfile

from flows.metrics.exposition import registry
from flows.metrics.facts import look
from flows.settings import Settings, load


@contextmanager
def served(settings: Settings, port: int) -> Iterator[None]:
    """Answer on this loopback port inside the `with` block; each question is a look of its own."""
    server, thread = start_http_server(port, "127.0.0.1", registry(partial(look, settings)))
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
