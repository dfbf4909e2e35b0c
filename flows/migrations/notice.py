"""Telling the owners of sessions that they are to move: what changes, what would end, when, and how to answer.

A notice counts as delivered when an outside channel has accepted it, or when it was written to a terminal at which
somebody sits; only then does a deadline begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine as Database

from flows import notices
from flows.errors import RefitError
from flows.migrations.history import Event, History, Kind
from flows.migrations.rollout import Action, Decision, Reason
from flows.sessions import terminals
from flows.sessions.activity import Activity, Verdict, judge
from flows.sessions.lifecycle import Sessions
from flows.sessions.probes import see
from flows.settings import Settings

AT_ONCE = 8
_FROM = "from "
# Whoever can't move for these is told when that is over.
_SILENT = {Reason.paused, Reason.aborted, Reason.superseded, Reason.gate}


@dataclass(frozen=True)
class Notice:
    """What the owner of a session is told.

    Attributes:
        session: its name.
        image: digest of the image that it is to have.
        changes: what that changes, in words.
        ends: what would end, as it was seen.
        seconds: how long it is foreseen to be away at most.
        when: when it moves, in words.
        deadline: when it is moved whatever works in it, were this delivered now; none: never.
    """

    session: str
    image: str
    changes: str
    ends: tuple[str, ...]
    seconds: float
    when: str
    deadline: datetime | None

    @property
    def title(self) -> str:
        """One line."""
        return f"The session {self.session} is to get a new image"

    @property
    def text(self) -> str:
        """All of it."""
        name = self.session
        last = f"On {self.deadline:%Y-%m-%d %H:%M} UTC it moves whatever works in it." if self.deadline else ""
        return "\n".join(
            filter(
                None,
                (
                    f"{self.title} ({self.image.removeprefix('sha256:')[:12]}). Its home stays as it is.",
                    f"It moves {self.when}, and is away for less than {self.seconds:.0f} s. {last}".rstrip(),
                    f"What changes: {self.changes or 'nothing that is known'}.",
                    f"What would end: {'; '.join(self.ends)}." if self.ends else "",
                    f"At once: refit migrate --session {name}. Later: refit session snooze {name} 2h.",
                    f"Not before a day: refit session mode {name} pin 2026-12-31. More: refit session wish {name}.",
                ),
            )
        )


def would_end(activity: Activity) -> tuple[str, ...]:
    """The programs and kernels that a stop would end, in words. Pure."""
    named = (found.text for found in activity.evidence if found.says is not Verdict.idle)
    return tuple(text for text in named if ", pid " in text or text.startswith("kernel "))


def when(line: Decision) -> str:
    """When a session moves of itself, in words. Pure."""
    if line.reason in (Reason.ask, Reason.blocked):
        return f"once you agree ({line.why})"
    if line.at and not line.forced:
        return f"at {line.at:%Y-%m-%d %H:%M} UTC, if nobody works in it then"
    return "when nobody works in it"


def to_be_told(decisions: Iterable[Decision], told: Iterable[Event]) -> list[Decision]:
    """Those that are to move, and whose owners don't know of this image yet. Pure."""
    known = {(event.session, event.image) for event in told if event.kind is Kind.noticed}
    return [
        line
        for line in decisions
        if line.action in (Action.later, Action.wait) and line.reason not in _SILENT
        if (line.session, line.new) not in known
    ]


def moving_from(event: Event) -> str:
    """The image that a session had when its owner was told. Pure."""
    return event.what.removeprefix(_FROM).partition(";")[0]


class Teller:
    """Tells owners, and writes down whether that was delivered."""

    def __init__(
        self,
        settings: Settings,
        sessions: Sessions,
        database: Database,
        changes: Callable[[str, str], str],
        deadline: Callable[[str], datetime | None],
    ) -> None:
        """A teller.

        Args:
            settings: those in force.
            sessions: the sessions of this machine.
            database: where the history is.
            changes: says what changes between two images, in words.
            deadline: says when a session would be moved by force, were its owner told now; none: never.
        """
        self._settings, self._sessions, self._history = settings, sessions, History(database)
        self._changes, self._deadline = changes, deadline

    def tell(self, decisions: Sequence[Decision]) -> tuple[str, ...]:
        """Tell all who are to be told; the names of the sessions whose owners know now."""
        lines = to_be_told(decisions, self._history.events(kinds=(Kind.noticed,)))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return tuple(line.session for line, done in zip(lines, pool.map(self._tell, lines), strict=True) if done)

    def _tell(self, line: Decision) -> bool:
        delivered, problems = self._deliver(line)
        told = "; ".join([f"{_FROM}{line.old}", *delivered, *problems])
        last = self._history.events(session=line.session, image=line.new, kinds=(Kind.not_noticed,))
        if delivered:
            self._history.add(Kind.noticed, session=line.session, image=line.new, what=told)
        elif not last or last[-1].what != told:
            self._history.add(Kind.not_noticed, session=line.session, image=line.new, what=told)
        return bool(delivered)

    def _deliver(self, line: Decision) -> tuple[list[str], list[str]]:
        """By which ways a notice was delivered; and by which not, and why."""
        try:
            session = self._sessions.that_runs(line.session)
            look = see(self._sessions.engine, session)
            notice = self._notice(line, would_end(judge(look, session.access.helpers, self._settings.quiet * 60)))
            took = terminals.write(self._sessions.engine, session, notice.text, sorted(look.terminals))
            shown, problems = [name for name in took if name in terminals.watched(look)], []
        except RefitError as error:
            notice, took, shown, problems = self._notice(line, ()), (), [], [error.what]
        addresses = notices.addresses_of(line.session, self._settings)
        failures = notices.send_to(addresses, notice.title, notice.text, "notify_owners")
        accepted = len(addresses) - len(failures)
        delivered = [
            *([f"shown at {_names(shown)}"] if shown else []),
            *([f"accepted by {accepted} of {len(addresses)} addresses"] if accepted else []),
        ]
        if unseen := [name for name in took if name not in shown]:
            problems.append(f"nobody may have seen it at {_names(unseen)}")
        if not delivered and not failures:
            problems.append("nobody sits at a terminal, and `notify_owners` names no address")
        return delivered, [*problems, *failures]

    def _notice(self, line: Decision, ends: tuple[str, ...]) -> Notice:
        try:
            changes = self._changes(line.old, line.new)
        except RefitError:  # to tell who can be told is more than to tell all
            changes = ""
        seconds = self._settings.migration.move_seconds
        return Notice(line.session, line.new, changes, ends, seconds, when(line), self._deadline(line.session))


def _names(found: Iterable[str]) -> str:
    return ", ".join(name.removeprefix("/dev/") for name in found)
