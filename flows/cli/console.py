"""The common parts of all verbs of the command line: output, runs of flows, options."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from flows.core.errors import RefitError
from flows.core.formatting import printable
from flows.core.lazily import lazily

with lazily(globals()):
    from pydantic_core import to_jsonable_python

    from flows import services
    from flows.catalog.load import newest_release
    from flows.cli import screen, tables
    from flows.core.documents import Mistakes
    from flows.core.settings import Settings, default_folders, load


class Printer(Console):
    """The only way to a terminal: text is text there, never markup, and nothing of it controls the terminal."""

    def __init__(self, **more: Any) -> None:
        # Names and what people wrote may have colons, which are no emoji.
        super().__init__(markup=False, emoji=False, **more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The parts of what is printed; those that control the terminal are rich's own."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(printable(part.text), part.style)


out = Printer()
err = Printer(stderr=True)

_NEWEST: Any = {"default_factory": lambda: newest_release(load().catalog), "show_default": "the newest"}
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
ReleaseName = Annotated[str, typer.Argument(metavar="RELEASE", help="Name of the release.", **_NEWEST)]
OfRelease = Annotated[str, typer.Option("--release", metavar="RELEASE", help="Name of the release.", **_NEWEST)]
SessionName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the session.")]


@contextmanager
def running_flows(quiet: bool = False) -> Iterator[Settings]:
    """Everything inside runs as Prefect flows against Refit's own server, with progress on the screen."""
    settings = load()
    services.require(settings)
    os.environ.update(services.prefect_environment(settings))
    # Prefect reads its settings while it is imported.
    from flows.orchestration import results  # noqa: PLC0415

    results.trust_none()
    with _ending_when_told(), nullcontext() if quiet else screen.showing(err):
        yield settings


@contextmanager
def _ending_when_told() -> Iterator[None]:
    """End as a program does that was told to, without a traceback: Prefect has an exception of its own for that."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:
        raise SystemExit(128 + signal.SIGTERM) from None


def shown_catalog(catalog: Path) -> str:
    """Which catalog was taken, in a line: nobody should look for their recipes in another one."""
    is_shipped = catalog == default_folders.SHIPPED_CATALOG != Path.cwd()
    return f"Catalog: {catalog}{', which came with Refit' if is_shipped else ''}"


def show_data(as_json: bool, data: Any, table: Table) -> None:
    """Print a result as JSON for scripts, or as a table for people."""
    if as_json:
        show_json(data)
    else:
        show(table)


_shown: list[bool] = []  # whether this command's one JSON document is there already


def show_json(data: Any) -> None:
    """Print a result as JSON for scripts."""
    _shown.append(True)
    # With every character beyond ASCII escaped: it is the same data, and may be shown on a terminal.
    out.print_json(json.dumps(to_jsonable_python(data)), ensure_ascii=True)


def show_json_error(error: RefitError, **more: Any) -> None:
    """Print an error as the JSON document of a command that has none yet, with what there is beside it."""
    if not _shown:
        mistakes = [vars(mistake) for mistake in error.mistakes] if isinstance(error, Mistakes) else []
        fields = {"what": error.what, "why": error.why, "hint": error.hint, "mistakes": mistakes}
        show_json({"error": fields, **more})


def show_text(content: str | bytes) -> None:
    """Write a text as it is, for a file or a program; on a terminal, as one can show it."""
    text = content.decode(errors="surrogateescape") if isinstance(content, bytes) else content
    typer.echo(printable(text) if sys.stdout.isatty() else content, nl=False)


def show(table: Table) -> None:
    """Print a table."""
    if not table.row_count:
        out.print(f"{table.title}: none.")
        return
    # A terminal that is too narrow breaks whole lines: text that is copied from it is still in one piece.
    Printer(width=max(out.width, tables.least_width(table))).print(table)


def show_error(text: str) -> None:
    """Print an error as all of them are printed."""
    err.print("✗ ", style="red", end="")
    # Paths and addresses that are longer than a line stay in one piece.
    err.print(text, highlight=False, overflow="ignore", crop=False)
