"""What results look like to a person: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from flows.images.cache import Cache
from flows.images.evidence import Changes, Comparison, File
from flows.images.plan import Action, Plan, Step, describe
from flows.services import ServiceState
from flows.sessions.lifecycle import Status

if TYPE_CHECKING:
    from flows.build_profiles import BuildReport
    from flows.migrations.carry import Result
    from flows.prune_images import PruneReport


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


def plan(planned: Plan, explain: bool) -> Table:
    """What would be done to each stage; why, with every input that changed, if it is to be explained."""

    def why(step: Step) -> str:
        return "\n".join(map(describe, step.changes)) if explain and step.changes else step.reason

    rows = ((s.stage, s.action, f"{s.seconds:.0f} s" if s.seconds else "", why(s)) for s in planned.steps.values())
    return table("Stages", ("stage", "action", "about", "why"), rows)


def planned(planned: Plan) -> str:
    """What would be done, in a sentence."""
    if planned.count(Action.reuse) == len(planned.steps):
        return f"All {len(planned.steps)} stages are there already: nothing would be built."
    counted = ", ".join(f"{action} {number}" for action in Action if (number := planned.count(action)))
    return f"Of {len(planned.steps)} stages: {counted}."


def built(report: BuildReport) -> str:
    """What had to be built, in a sentence."""
    if not report.built and not report.grafted:
        return f"All {len(report.stages)} stages were there already: nothing was built."
    seconds = sum(stage.seconds for stage in report.built)
    names = ", ".join(stage.stage for stage in report.built) or "none"
    built = f"Built {len(report.built)} of {len(report.stages)} stages in {seconds:.0f} s of work: {names}."
    if not report.grafted:
        return built
    seconds = sum(stage.seconds for stage in report.grafted)
    names = ", ".join(stage.stage for stage in report.grafted)
    return f"{built}\nGrafted {len(report.grafted)} in {seconds:.2f} s: {names}."


def evidence(digest: str, files: Iterable[File]) -> Table:
    """What is attached to an image."""
    rows = ((file.name, file.media_type, f"{file.size:,} bytes") for file in files)
    return table(f"Evidence of {short(digest)}", ("file", "type", "size"), rows)


def findings(findings: Iterable[Mapping[str, object]]) -> Table:
    """What the checks of an image found."""
    rows = (
        (found["check"], "passed" if found["passed"] else "failed", found["seen"], f"{found['seconds']} s")
        for found in findings
    )
    return table("Checks", ("check", "", "seen", "took"), rows)


def changes(changes: Changes) -> Table:
    """What differs between the packages of two images."""
    rows = (
        *((name, "", version, "added") for name, version in changes.added.items()),
        *((name, version, "", "removed") for name, version in changes.removed.items()),
        *((name, before, after, "changed") for name, (before, after) in changes.changed.items()),
    )
    return table("Packages", ("package", "old", "new", ""), rows)


def layers(found: Comparison) -> str:
    """What of a newer image a host has that has the older, in a sentence."""
    return (
        f"{found.layers_shared} of {found.layers} layers are shared ({found.bytes_shared / 1e6:.1f} MB); "
        f"a host that has the first image pulls {found.bytes_to_pull / 1e6:.1f} MB."
    )


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


def prune(report: PruneReport) -> Table:
    """What goes or has gone from the registry; all that stays is in the JSON, with its reasons."""
    rows = ((item.repository, ", ".join(item.tags), short(item.digest), item.reason) for item in report.plan.remove)
    title = "Removed from the registry" if report.done else "Would be removed from the registry"
    return table(title, ("repository", "tags", "digest", "why"), rows)


def pruned(report: PruneReport) -> str:
    """How much goes and stays, and what it frees, in sentences."""
    counts = f"To go: {len(report.plan.remove)} manifests. To stay: {len(report.plan.keep)}."
    if not report.done:
        return f"{counts} About {report.plan.bytes / 1e6:.1f} MB of layers would be free, and old copies and logs here."
    freed = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in report.freed.items())
    return f"{counts} Freed: {freed}. {report.left}".strip()


def caches(found: Iterable[Cache]) -> Table:
    """The caches of downloads."""
    rows = (
        (
            c.name,
            f"{c.size / 1e6:.1f} MB",
            f"{c.limit / 1e6:.0f} MB",
            c.used and f"{c.used:%Y-%m-%d %H:%M} UTC",
            c.folder,
        )
        for c in found
    )
    return table("Caches", ("cache", "size", "limit", "last used", "folder"), rows)


def short(digest: str) -> str:
    """The first twelve digits of a digest: enough for people to tell images apart."""
    return digest.removeprefix("sha256:")[:12]
