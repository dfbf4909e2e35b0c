"""Tables of sessions, their moves and rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from flows.cli.tables import short, shortened, table, whole_width
from flows.core.formatting import first_sentence, megabytes
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.migrations.move import Move
    from flows.migrations.notifications.fleet import Fleet, RolloutLine, SessionLine
    from flows.migrations.planning import wave_gates
    from flows.migrations.planning.rollout import Decision
    from flows.sessions.activity.evidence import Verdict
    from flows.sessions.activity.seen import Seen
    from flows.sessions.events import Event
    from flows.sessions.model import Session
    from flows.sessions.overview import Status
    from flows.sessions.preferences import PreferenceChange
    from flows.sessions.recovery import Recovered

if TYPE_CHECKING:
    from flows.migrations.results import Result

# Of names in a sentence.
_MOST_NAMED = 10


def moves(results: Iterable[Result], *, whole: bool = False) -> Table:
    """The result for each session; the reason in its first sentence or as a whole."""
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
            d.wave if d.wave else "volunteers" if d.wave == wave_gates.VOLUNTEERS else "",
            d.at and f"{d.at:%Y-%m-%d %H:%M} UTC",
            megabytes(d.pull, 1) if d.pull else "",
            f"{d.why}; by force then" if d.forced else d.why,
        )
        for d in decisions
    )
    return table("Plan", ("session", "action", "from", "to", "wave", "earliest", "to pull", "why"), rows)


def of_fleet(lines: Fleet) -> tuple[Table, Table]:
    """How the rollouts go, and where the sessions stand."""
    return rollouts(lines.rollouts), fleet(lines.sessions)


def rollouts(rollouts: Iterable[RolloutLine]) -> Table:
    """How rollouts go, a line for each wave."""
    rows = (
        (
            short(rollout.image),
            f"{rollout.profile} {rollout.release}",
            "complete" if rollout.complete else rollout.way,
            f"{rollout.begun:%Y-%m-%d %H:%M} UTC",
            wave.title,
            wave.moved,
            wave.failed,
            wave.left,
            wave.health.text if wave.health else "",
        )
        for rollout in rollouts
        for wave in rollout.waves
    )
    columns = ("image", "profile", "state", "begun", "wave", "moved", "failed", "left", "what it says")
    return table("Rollouts", columns, rows)


def fleet(sessions: Iterable[SessionLine]) -> Table:
    """Sessions with their images, those that are behind, and why."""
    rows = (
        (
            line.session,
            short(line.image),
            short(line.newest),
            "overdue" if line.overdue else "behind" if line.newest not in ("", line.image) else "",
            line.at and f"{line.at:%Y-%m-%d %H:%M} UTC",
            line.deadline and f"{line.deadline:%Y-%m-%d %H:%M} UTC",
            line.why,
        )
        for line in sessions
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
    """The events."""
    rows = (
        (e.number, f"{e.at:%Y-%m-%d %H:%M:%S} UTC", e.kind, e.session, short(e.image), e.by, shortened(e.what))
        for e in events
    )
    return table("Events", ("number", "at", "event", "session", "image", "by", "what"), rows)


def wish_changes(changes: Iterable[PreferenceChange]) -> Table:
    """The wishes about a session's migrations, and who said them."""
    rows = ((change.session, f"{change.at:%Y-%m-%d %H:%M} UTC", change.by, change.what) for change in changes)
    return table("PreferenceStore", ("session", "at", "by", "what"), rows)


def had(session: Session) -> Iterator[str]:
    """The parts of a session beside its home: volumes, GPUs, limits; a line for each kind."""
    if session.volumes:
        places = (f"{v.name} at {v.path}{' (read-only)' if v.read_only else ''}" for v in session.volumes)
        yield f"Volumes: {', '.join(places)}"
    if session.gpus:
        yield f"GPUs: {', '.join(session.devices) or f'{session.gpus}, once it runs'}"
    memory = [f"{session.memory / 1e9:g} GB of memory"] if session.memory else []
    if limits := [*memory, *([f"{session.cpus:g} cores"] if session.cpus else [])]:
        yield f"At most: {', '.join(limits)}"


def sessions(listed: Iterable[Status], urls: Mapping[str, str], room: int) -> Table:
    """All sessions, with their URLs only where a line of so many characters has room for them beside whole names."""
    columns, rows = ("session", "state", "profile", "image", "url"), [session_row(status, urls) for status in listed]
    kept = len(columns) if whole_width(columns, rows) <= room else -1
    return table("Sessions", columns[:kept], [row[:kept] for row in rows])


def session_row(status: Status, urls: Mapping[str, str]) -> tuple[object, ...]:
    """A session's cells: name, state, profile, image, URL."""
    session = status.session
    return session.name, status.running or "no container", session.profile, short(session.image), urls[session.name]


def recovered(results: Iterable[Recovered]) -> Table:
    """Sessions that had lost their records."""
    rows = (
        (
            result.session,
            result.container or "a home alone",
            "runs" if result.runs else "stopped" if result.container else "",
            result.problem or (f"beside it, stopped: {', '.join(result.others)}, from moves" if result.others else ""),
        )
        for result in results
    )
    return table("Sessions that are on record again", ("session", "container", "state", "what"), rows)


def activity(seen: Iterable[Seen], idle_state_hours: float) -> Table:
    """The activity in sessions; `idle_state_hours`: as in the settings (hours)."""
    free_for = {
        Verdict.idle: "yes",
        Verdict.state: f"{idle_state_hours:g} h later, if its owner has seen a notice",
        Verdict.busy: "no",
    }

    def row(activity: Seen) -> Sequence[str]:
        free = free_for[activity.verdict]
        return (
            activity.session,
            activity.verdict,
            f"{activity.since:%Y-%m-%d %H:%M} UTC",
            free,
            "\n".join(map(str, activity.evidence)),
        )

    return table("Activity", ("session", "verdict", "since", "interruptible", "evidence"), map(row, seen))


def without_hub(owner: str) -> str:
    """Words about a session with an owner where nobody logs in. Pure."""
    return (
        f"No JupyterHub runs here: {owner} can't log in, and everybody with the session's address gets in. With "
        f"`hub: true` in settings.yaml, `refit up` and `refit user invite {owner}` people log in."
    )


def unowned(sessions: Sequence[str]) -> str:
    """Words about sessions of owners who have no account, where people log in. Pure."""
    shown = ", ".join(sessions[:_MOST_NAMED]) + (" …" if len(sessions) > _MOST_NAMED else "")
    return (
        f"People log in at the gateway, and it lets none of them in to {shown}: no account is the owner's. "
        "`refit user invite NAME` makes an account, `refit session owner SESSION NAME` gives a session to it. "
        "After `hub: false` in settings.yaml and `refit up`, a link with the session's token is enough."
    )
