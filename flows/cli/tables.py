"""Results as a person sees them: tables and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from flows.core.formatting import duration, megabytes, printable, some
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.authoring.importing.report import Recipe
    from flows.images.builder.cache import Cache
    from flows.images.plan import Action, Plan, Step, describe
    from flows.publishing.evidence import File
    from flows.publishing.image_comparison import Changes, Comparison
    from flows.releases.branches import ReleaseBranch
    from flows.services import ServiceState

if TYPE_CHECKING:
    from flows.lock_requirements import Lock
    from flows.orchestration.queues import Queue, Run
    from flows.prune_images import PruneReport
    from flows.releases.report import BuildReport


# Columns that may be broken into lines. All others hold what people copy: names, digests, addresses.
BREAKABLE = {
    "change",
    "evidence",
    "folder",
    "here",
    "packages",
    "profile",
    "seen",
    "tags",
    "type",
    "what",
    "why",
    "workers",
}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LEAST = 16  # characters of a column that is broken
_GAP = 2


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table; cells that are None are empty."""
    table = Table(
        title=Text(printable(title), "bold"), title_justify="left", box=None, pad_edge=False, padding=(0, _GAP, 0, 0)
    )
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    for number, name in enumerate(columns):
        width = max(cell_len(line) for cell in (name, *(row[number] for row in cells)) for line in cell.split("\n"))
        breakable = name in BREAKABLE
        least = min(width, _LEAST) if breakable else width
        table.add_column(name, overflow="fold", no_wrap=not breakable, min_width=least)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def least_width(table: Table) -> int:
    """How many characters a line must have for nothing to be broken that people copy."""
    return sum((column.min_width or 0) + _GAP for column in table.columns)


def whole_width(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """How many characters a line must have for no cell of a table to be broken."""
    return sum(max(cell_len(str(cell)) for cell in column) + _GAP for column in zip(columns, *rows, strict=True)) - _GAP


def images(report: BuildReport) -> Table:
    """The images of a run."""
    rows = ((i.tag, short(i.digest), megabytes(i.size, 1), "alias moved" if i.new else "") for i in report.images)
    return table("Images", ("tag", "digest", "size", ""), rows)


def plan(planned: Plan, explain: bool) -> Table:
    """The action on each stage; the reason with every input that changed, if it is to be explained."""

    def why(step: Step) -> str:
        return "\n".join(describe(change) for change in step.changes) if explain and step.changes else step.reason

    rows = ((s.stage, s.action, f"{s.seconds:.0f} s" if s.seconds else "", why(s)) for s in planned.steps.values())
    return table("Stages", ("stage", "action", "about", "why"), rows)


def planned(planned: Plan) -> str:
    """The plan in a sentence."""
    if not planned.steps:
        return "No stage can be planned."
    if planned.count(Action.reuse) == len(planned.steps):
        return f"All {len(planned.steps)} stages are there already: nothing would be built."
    counted = ", ".join(f"{action} {number}" for action in Action if (number := planned.count(action)))
    return f"Of {len(planned.steps)} stages: {counted}."


def due(locks: Sequence[str]) -> str:
    """Which Python locks a night would make anew, in a sentence."""
    return f"Locks were taken as they are; a night would make anew, regardless of the indexes: {some(locks)}."


def built(report: BuildReport) -> str:
    """The stages that had to be built, in a sentence."""
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


def held_back(locks: Iterable[Lock]) -> Table:
    """Packages that a release keeps from moving, and the vulnerabilities that only such a move would mend."""
    rows = (
        (lock.bundle, lock.python, str(lock.held) if lock.held else "", "\n".join(map(str, lock.unmended)))
        for lock in locks
        if lock.held or lock.unmended
    )
    return table("Held back by the release", ("bundle", "python", "change", "what"), rows)


def releases(branches: Iterable[ReleaseBranch], today: date) -> Table:
    """Releases, and how long they are supported."""
    rows = (
        (
            branch.release,
            "branch" if branch.branch else "catalog",
            "mistakes" if branch.file is None else "supported" if branch.is_supported(today) else "ended",
            branch.file and (branch.file.supported_until or "for ever"),
            branch.file and (branch.file.nightly or "none"),
            branch.file and len(branch.file.profiles),
            branch.problem,
        )
        for branch in branches
    )
    columns = ("release", "in", "state", "supported until", "nights (UTC)", "profiles", "what")
    return table("Releases", columns, rows)


def evidence(digest: str, files: Iterable[File]) -> Table:
    """The attachments of an image."""
    rows = ((file.name, file.media_type, f"{file.size:,} bytes") for file in files)
    return table(f"Evidence of {short(digest)}", ("file", "type", "size"), rows)


def findings(findings: Iterable[Mapping[str, object]]) -> Table:
    """The results of an image's checks."""
    rows = (
        (finding["check"], "passed" if finding["passed"] else "failed", finding["seen"], f"{finding['seconds']} s")
        for finding in findings
    )
    return table("Checks", ("check", "", "seen", "took"), rows)


def changes(changes: Changes, title: str = "Packages") -> Table:
    """The differences between the packages of two images."""
    rows = (
        *((name, "", version, "added") for name, version in changes.added.items()),
        *((name, version, "", "removed") for name, version in changes.removed.items()),
        *((name, before, after, "changed") for name, (before, after) in changes.changed.items()),
    )
    return table(title, ("package", "old", "new", ""), rows)


def layers(comparison: Comparison) -> str:
    """The part of a newer image that a host with the older one has, in a sentence."""
    return (
        f"{comparison.layers_shared} of {comparison.layers} layers are shared "
        f"({megabytes(comparison.bytes_shared, 1)}); "
        f"a host that has the first image pulls {megabytes(comparison.bytes_to_pull, 1)}."
    )


def queues(queues: Iterable[Queue]) -> Table:
    """The queues of builds."""
    rows = (
        (q.system, "paused" if q.paused else "open", q.waiting, q.running, ", ".join(q.workers) or "none")
        for q in queues
    )
    return table("Queues", ("system", "state", "waiting", "running", "workers"), rows)


def runs(title: str, runs: Iterable[Run]) -> Table:
    """Runs in a queue."""
    return table(title, ("run", "state", "id"), ((run.name, run.state, run.id) for run in runs))


def service_states(states: Iterable[ServiceState]) -> Table:
    """The embedded services."""
    rows = (
        (
            s.name,
            "answers" if s.answering else "runs, but doesn't answer" if s.running else "down",
            s.url,
            s.pid,
            duration(s.uptime) if s.running else "",
            s.log.name,
        )
        for s in states
    )
    return table("Services", ("service", "state", "url", "pid", "up for", "log"), rows)


def prune(report: PruneReport) -> Table:
    """The manifests that go or have gone from the registry; the JSON also has those that stay, with reasons."""
    rows = ((item.repository, ", ".join(item.tags), short(item.digest), item.reason) for item in report.plan.remove)
    title = "Removed from the registry" if report.done else "Would be removed from the registry"
    return table(title, ("repository", "tags", "digest", "why"), rows)


def pruned(report: PruneReport) -> str:
    """How much goes and stays, and what it frees, in sentences."""
    counts = f"To go: {len(report.plan.remove)} manifests. To stay: {len(report.plan.keep)}."
    if not report.done:
        layers = f"About {megabytes(report.plan.bytes, 1)} of layers would be free"
        return f"{counts} {layers}, and old copies, downloads and logs on this machine."
    freed = ", ".join(f"{name} {megabytes(size, 1)}" for name, size in report.freed.items())
    return f"{counts} Freed: {freed}. {report.left}".strip()


def caches(caches: Iterable[Cache]) -> Table:
    """The caches of downloads."""
    rows = (
        (
            c.name,
            megabytes(c.size, 1),
            megabytes(c.limit),
            c.used and f"{c.used:%Y-%m-%d %H:%M} UTC",
            c.folder,
        )
        for c in caches
    )
    return table("Caches", ("cache", "size", "limit", "last used", "folder"), rows)


def shortened(text: str) -> str:
    """A text in which digests are short."""
    return _DIGEST.sub(lambda match: short(match[0]), text)


def short(digest: str) -> str:
    """The first twelve digits of a digest: enough for people to tell images apart."""
    return digest.removeprefix("sha256:")[:12]


def adopted(recipes: Iterable[Recipe]) -> Table:
    """The results for the recipes of others."""
    rows = ((each.name, "no" if each.why else "yes", each.level, each.why) for each in recipes)
    return table("Recipes", ("recipe", "in the release", "CUDA", "why not"), rows)
