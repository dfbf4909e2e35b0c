"""The part of the `refit` command that tells Prometheus how all is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import show_text
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.core.settings import load

# Only this verb needs prometheus_client: it is imported where it is run.
# ruff: noqa: PLC0415


def show_metrics(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", help="Write them into this file, for node_exporter's textfile collector."
        ),
    ] = None,
) -> None:
    """Print sessions, moves, builds and services as Prometheus reads them; with `metrics_port`, `up` serves them."""
    from flows.metrics import serving

    if file:
        serving.write(load(), file)
    else:
        show_text(serving.text(load()))
