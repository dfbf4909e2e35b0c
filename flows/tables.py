"""What results look like to a person: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from flows.services import ServiceState
from flows.sessions.lifecycle import Status

if TYPE_CHECKING:
    from flows.build_profiles import BuildReport
    from flows.migrations.carry import Result


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table; cells that are None are empty."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    return table


def images(report: BuildReport) -> Table:
    """The images of a run."""
    rows = ((i.tag, short(i.digest), f"{i.size / 1e6:.1f} MB", "alias moved" if i.new else "") for i in report.images)
    return table("Images", ("tag", "digest", "size", ""), rows)


def built(report: BuildReport) -> str:
    """What had to be built, in a sentence."""
    if not report.built:
        return f"All {len(report.stages)} stages were there already: nothing was built."
    seconds = sum(stage.seconds for stage in report.built)
    names = ", ".join(stage.stage for stage in report.built)
    return f"Built {len(report.built)} of {len(report.stages)} stages in {seconds:.0f} s of work: {names}."


def moves(results: Iterable[Result]) -> Table:
    """What became of each session."""
    rows = (
        (
            r.session,
            short(r.old),
            short(r.new),
            r.packages,
            f"{r.downtime:.2f} s" if r.downtime is not None else "",
            "moved" if r.moved else r.state,
            r.reason,
        )
        for r in results
    )
    return table("Moves", ("session", "from", "to", "packages", "downtime", "result", "why"), rows)


def session_row(status: Status) -> tuple[object, ...]:
    """A session's cells: name, state, profile, image, URL."""
    session = status.session
    return session.name, status.running or "no container", session.profile, short(session.image), session.url


def service_states(states: Iterable[ServiceState]) -> Table:
    """The embedded services."""
    rows = (
        (
            s.name,
            "answers" if s.answering else "runs, but doesn't answer" if s.running else "down",
            s.url,
            s.pid,
            f"{s.uptime:.0f} s" if s.running else "",
            s.log,
        )
        for s in states
    )
    return table("Services", ("service", "state", "url", "pid", "up for", "log"), rows)


def short(digest: str) -> str:
    """The first twelve digits of a digest: enough for people to tell images apart."""
    return digest.removeprefix("sha256:")[:12]
