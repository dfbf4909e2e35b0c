"""The screen while long work goes on: a line per thing with its state and time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flows.core import progress
from flows.core.progress import Report, State

MARKS = {
    State.waiting: ("·", "dim"),
    State.running: ("…", "cyan"),
    State.done: ("✓", "green"),
    State.reused: ("=", "blue"),
    State.failed: ("✗", "red"),
}


@dataclass(frozen=True)
class Line:
    """One thing: its last report, and when it began and ended (seconds of the monotonic clock)."""

    report: Report
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def seconds(self) -> float:
        """How long it has taken so far, or took."""
        return (self.ended or time.monotonic()) - self.began


class Screen:
    """A listener for `progress`: a live table on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: dict[str, Line] = {}

    def __call__(self, report: Report) -> None:
        """Take one report."""
        over = report.state not in (State.waiting, State.running)
        line = self._lines.get(report.thing)
        if line is None or line.ended or line.report.state == State.waiting:
            line = Line(report)  # a thing that comes again, or begins only now, is timed from here
        note = report.note or (line.report.note if not over else "")
        self._lines[report.thing] = replace(
            line, report=replace(report, note=note), ended=time.monotonic() if over else None
        )
        if over and not self._console.is_terminal:
            self._console.print(self._plain(self._lines[report.thing]))

    def _plain(self, line: Line) -> Text:
        mark, style = MARKS[line.report.state]
        return Text.assemble(
            (f"{mark} {line.report.thing:<42} {line.report.state:<8}", style),
            f"{line.seconds():7.1f} s  {line.report.note}",
        )

    def __rich__(self) -> RenderableType:
        """The table as it stands."""
        table = Table.grid(padding=(0, 2))
        for column in ("", "thing", "state", "time", "note"):
            table.add_column(column, justify="right" if column == "time" else "left", overflow="ellipsis", no_wrap=True)
        for name, line in self._lines.items():
            mark, style = MARKS[line.report.state]
            first = Spinner("dots", style=style) if line.report.state == State.running else Text(mark, style)
            table.add_row(
                first,
                Text(name, style if line.report.state == State.failed else ""),
                Text(line.report.state, style),
                f"{line.seconds():.1f} s",
                Text(line.report.note, "dim"),
            )
        return table


@contextmanager
def showing(console: Console) -> Iterator[None]:
    """Show all progress inside the `with` block."""
    screen = Screen(console)
    with progress.listening(screen):
        if not console.is_terminal:
            yield
            return
        with Live(screen, console=console, refresh_per_second=8, transient=False):
            yield
