"""What results look like to a person: tables and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from flows.core.formatting import first_sentence, printable, some
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.authoring.importing.report import Recipe
    from flows.images.builder.cache import Cache
    from flows.images.plan import Action, Plan, Step, describe
    from flows.migrations.move import Move
    from flows.migrations.notifications.fleet import Fleet, RolloutLine, SessionLine
    from flows.migrations.planning import waves
    from flows.migrations.planning.rollout import Decision
    from flows.publishing.evidence import Changes, Comparison, File
    from flows.releases.branches import ReleaseBranch
    from flows.services import ServiceState
    from flows.sessions.activity.seen import Seen
    from flows.sessions.activity.verdict import Verdict
    from flows.sessions.events import Event
    from flows.sessions.lifecycle import Status
    from flows.sessions.model import Session
    from flows.sessions.preferences import PreferenceChange
    from flows.sessions.recovery import Recovered

if TYPE_CHECKING:
    from flows.lock_requirements import Lock
    from flows.migrations.results import Result
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


def images(report: BuildReport) -> Table:
    """The images of a run."""
    rows = ((i.tag, short(i.digest), f"{i.size / 1e6:.1f} MB", "alias moved" if i.new else "") for i in report.images)
    return table("Images", ("tag", "digest", "size", ""), rows)


def plan(planned: Plan, explain: bool) -> Table:
    """What would be done to each stage; why, with every input that changed, if it is to be explained."""

    def why(step: Step) -> str:
        return "\n".join(describe(change) for change in step.changes) if explain and step.changes else step.reason

    rows = ((s.stage, s.action, f"{s.seconds:.0f} s" if s.seconds else "", why(s)) for s in planned.steps.values())
    return table("Stages", ("stage", "action", "about", "why"), rows)


def planned(planned: Plan) -> str:
    """What would be done, in a sentence."""
    if not planned.steps:
        return "No stage can be planned."
    if planned.count(Action.reuse) == len(planned.steps):
        return f"All {len(planned.steps)} stages are there already: nothing would be built."
    counted = ", ".join(f"{action} {number}" for action in Action if (number := planned.count(action)))
    return f"Of {len(planned.steps)} stages: {counted}."


def due(locks: Sequence[str]) -> str:
    """Which Python locks a night would make anew, in a sentence."""
    return f"Locks were taken as they are; whatever the indexes say, a night would make anew: {some(locks)}."


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


def held_back(locks: Iterable[Lock]) -> Table:
    """What would have moved, but may not in a release, and the vulnerabilities that only such a move would mend."""
    rows = (
        (lock.bundle, lock.python, str(lock.held) if lock.held else "", "\n".join(map(str, lock.unmended)))
        for lock in locks
        if lock.held or lock.unmended
    )
    return table("Held back by the release", ("bundle", "python", "change", "what"), rows)


def releases(found: Iterable[ReleaseBranch], today: date) -> Table:
    """Releases, and how long they are supported."""
    rows = (
        (
            one.release,
            "branch" if one.branch else "catalog",
            "mistakes" if one.file is None else "supported" if one.is_supported(today) else "ended",
            one.file and (one.file.supported_until or "for ever"),
            one.file and (one.file.nightly or "none"),
            one.file and len(one.file.profiles),
            one.problem,
        )
        for one in found
    )
    columns = ("release", "in", "state", "supported until", "nights (UTC)", "profiles", "what")
    return table("Releases", columns, rows)


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


def changes(changes: Changes, title: str = "Packages") -> Table:
    """What differs between the packages of two images."""
    rows = (
        *((name, "", version, "added") for name, version in changes.added.items()),
        *((name, version, "", "removed") for name, version in changes.removed.items()),
        *((name, before, after, "changed") for name, (before, after) in changes.changed.items()),
    )
    return table(title, ("package", "old", "new", ""), rows)


def layers(found: Comparison) -> str:
    """What of a newer image a host has that has the older, in a sentence."""
    return (
        f"{found.layers_shared} of {found.layers} layers are shared ({found.bytes_shared / 1e6:.1f} MB); "
        f"a host that has the first image pulls {found.bytes_to_pull / 1e6:.1f} MB."
    )


def moves(results: Iterable[Result], *, whole: bool = False) -> Table:
    """What became of each session; why, in its first sentence or as a whole."""
    rows = (
        (
            r.session,
            short(r.old),
            short(r.new),
            r.packages,
            f"{r.downtime:.2f} s" if r.downtime is not None else "",
            "moved" if r.moved else r.state,
            r.reason if whole else first_sentence(r.reason),
        )
        for r in results
    )
    return table("Moves", ("session", "from", "to", "packages", "downtime", "result", "why"), rows)


def migration(decisions: Iterable[Decision]) -> Table:
    """The plan of a migration: what happens to each session, and when at the earliest."""
    rows = (
        (
            d.session,
            d.action,
            short(d.old),
            short(d.new),
            d.wave if d.wave else "volunteers" if d.wave == waves.VOLUNTEERS else "",
            d.at and f"{d.at:%Y-%m-%d %H:%M} UTC",
            f"{d.pull / 1e6:.1f} MB" if d.pull else "",
            f"{d.why}; by force then" if d.forced else d.why,
        )
        for d in decisions
    )
    return table("Plan", ("session", "action", "from", "to", "wave", "earliest", "to pull", "why"), rows)


def of_fleet(found: Fleet) -> tuple[Table, Table]:
    """How the rollouts go, and where the sessions stand."""
    return rollouts(found.rollouts), fleet(found.sessions)


def rollouts(found: Iterable[RolloutLine]) -> Table:
    """How rollouts go, a line for each wave."""
    rows = (
        (
            short(one.image),
            f"{one.profile} {one.release}",
            "complete" if one.complete else one.way,
            f"{one.begun:%Y-%m-%d %H:%M} UTC",
            wave.title,
            wave.moved,
            wave.failed,
            wave.left,
            wave.health.text if wave.health else "",
        )
        for one in found
        for wave in one.waves
    )
    columns = ("image", "profile", "state", "begun", "wave", "moved", "failed", "left", "what it says")
    return table("Rollouts", columns, rows)


def fleet(found: Iterable[SessionLine]) -> Table:
    """Who is on what image, who is behind, and why."""
    rows = (
        (
            one.session,
            short(one.image),
            short(one.newest),
            "overdue" if one.overdue else "behind" if one.newest not in ("", one.image) else "",
            one.at and f"{one.at:%Y-%m-%d %H:%M} UTC",
            one.deadline and f"{one.deadline:%Y-%m-%d %H:%M} UTC",
            one.why,
        )
        for one in found
    )
    return table("Sessions", ("session", "on", "newest", "", "moves", "deadline", "why"), rows)


def past_moves(moves: Iterable[Move], *, whole: bool) -> Table:
    """The moves that were made; why, in its first sentence or as a whole."""
    rows = (
        (
            move.before.name,
            f"{move.created:%Y-%m-%d %H:%M} UTC",
            move.state,
            short(move.before.image),
            short(move.after.image),
            (move.reason if whole else first_sentence(move.reason)) or (move.consent.text if move.consent else ""),
        )
        for move in moves
    )
    return table("Moves", ("session", "at", "state", "from", "to", "why"), rows)


def events(events: Iterable[Event]) -> Table:
    """What happened."""
    rows = (
        (e.number, f"{e.at:%Y-%m-%d %H:%M:%S} UTC", e.kind, e.session, short(e.image), e.by, _shortened(e.what))
        for e in events
    )
    return table("Events", ("number", "at", "event", "session", "image", "by", "what"), rows)


def wish_changes(changes: Iterable[PreferenceChange]) -> Table:
    """What was said of a session's migrations, and by whom."""
    rows = ((change.session, f"{change.at:%Y-%m-%d %H:%M} UTC", change.by, change.what) for change in changes)
    return table("PreferenceStore", ("session", "at", "by", "what"), rows)


def had(session: Session) -> Iterator[str]:
    """What a session has beside its home: volumes, GPUs, limits; a line for each kind."""
    if session.volumes:
        places = (f"{v.name} at {v.path}{' (read-only)' if v.read_only else ''}" for v in session.volumes)
        yield f"Volumes: {', '.join(places)}"
    if session.gpus:
        yield f"GPUs: {', '.join(session.devices) or f'{session.gpus}, once it runs'}"
    memory = [f"{session.memory / 1e9:g} GB of memory"] if session.memory else []
    if limits := [*memory, *([f"{session.cpus:g} cores"] if session.cpus else [])]:
        yield f"At most: {', '.join(limits)}"


def session_row(status: Status, url: str) -> tuple[object, ...]:
    """A session's cells: name, state, profile, image, URL."""
    session = status.session
    return session.name, status.running or "no container", session.profile, short(session.image), url


def queues(queues: Iterable[Queue]) -> Table:
    """The queues of builds."""
    rows = (
        (q.system, "held" if q.held else "open", q.waiting, q.running, ", ".join(q.workers) or "none") for q in queues
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
            _duration(s.uptime) if s.running else "",
            s.log.name,
        )
        for s in states
    )
    return table("Services", ("service", "state", "url", "pid", "up for", "log"), rows)


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def prune(report: PruneReport) -> Table:
    """What goes or has gone from the registry; all that stays is in the JSON, with its reasons."""
    rows = ((item.repository, ", ".join(item.tags), short(item.digest), item.reason) for item in report.plan.remove)
    title = "Removed from the registry" if report.done else "Would be removed from the registry"
    return table(title, ("repository", "tags", "digest", "why"), rows)


def pruned(report: PruneReport) -> str:
    """How much goes and stays, and what it frees, in sentences."""
    counts = f"To go: {len(report.plan.remove)} manifests. To stay: {len(report.plan.keep)}."
    if not report.done:
        layers = f"About {report.plan.bytes / 1e6:.1f} MB of layers would be free"
        return f"{counts} {layers}, and old copies, downloads and logs on this machine."
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


def _shortened(text: str) -> str:
    """A text in which digests are short."""
    return _DIGEST.sub(lambda found: short(found[0]), text)


def short(digest: str) -> str:
    """The first twelve digits of a digest: enough for people to tell images apart."""
    return digest.removeprefix("sha256:")[:12]


def recovered(found: Iterable[Recovered]) -> Table:
    """Sessions that had lost their records."""
    rows = (
        (
            one.session,
            one.container or "a home alone",
            "runs" if one.runs else "stopped" if one.container else "",
            one.problem or (f"beside it, stopped: {', '.join(one.others)}, from moves" if one.others else ""),
        )
        for one in found
    )
    return table("Sessions that are on record again", ("session", "container", "state", "what"), rows)


def adopted(recipes: Iterable[Recipe]) -> Table:
    """What became of the recipes of others."""
    rows = ((each.name, "no" if each.why else "yes", each.level, each.why) for each in recipes)
    return table("Recipes", ("recipe", "in the release", "CUDA", "why not"), rows)


def activity(seen: Iterable[Seen], keep_state: float) -> Table:
    """What was seen of the activity in sessions; `keep_state`: as in the settings (hours)."""
    free_for = {
        Verdict.idle: "yes",
        Verdict.state: f"{keep_state:g} h later, if its owner has seen a notice",
        Verdict.busy: "no",
    }

    def row(one: Seen) -> Sequence[str]:
        free = free_for[one.verdict]
        return (one.session, one.verdict, f"{one.since:%Y-%m-%d %H:%M} UTC", free, "\n".join(map(str, one.evidence)))

    return table("Activity", ("session", "verdict", "since", "interruptible", "evidence"), map(row, seen))
