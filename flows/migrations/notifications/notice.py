"""Notices to owners of sessions before these move: what changes, what would end, when, and how to answer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from flows.core.formatting import short
from flows.core.settings.policy import Mode
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.sessions.events import Event, Kind
from flows.sessions.preferences import UpdatePreferences, chosen_mode, read_duration

AGREES = "now"
ANSWERS = ((AGREES, "Move now"), ("2h", "In 2 hours"), ("1d", "In a day"))
"""The answers of buttons that an owner has in any case, and their texts."""
PIN = "pin "  # and the first day on which it may move
PIN_DAYS = 7
# Owners of sessions that can't move for these reasons are told when that is over.
_SILENT = {Reason.paused, Reason.aborted, Reason.superseded, Reason.gate}


@dataclass(frozen=True)
class Notice:
    """A notice to the owner of a session.

    Attributes:
        session: its name.
        image: digest of the image that it is to have.
        changes: the changes by that image, in words.
        ends: the programs that would end, as they were seen.
        seconds: how long it is foreseen to be away at most.
        quiet: after how many minutes without a key nobody works in it.
        keeps: hours for which what a stop would end is kept then.
        when: when it moves, in words.
        deadline: when it is moved whatever works in it, were this delivered now; none: never.
        left: hours that are left until then, if this is a reminder.
        answers: the answers that have a button, each with the text on it.
        page: address at which its owner answers; empty: there is none, and the shell is named.
        command: whether the session has a `refit` command inside.
    """

    session: str
    image: str
    changes: str
    ends: tuple[str, ...]
    seconds: float
    quiet: float
    keeps: float
    when: str
    deadline: datetime | None
    left: float | None = None
    answers: tuple[tuple[str, str], ...] = ANSWERS
    page: str = ""
    command: bool = False

    @property
    def title(self) -> str:
        """One line."""
        if self.left is not None:
            return f"The session {self.session} gets a new image within {self.left:g} h"
        return f"The session {self.session} is to get a new image"

    @property
    def text(self) -> str:
        """All of it."""
        last = f"On {self.deadline:%Y-%m-%d %H:%M} UTC it moves whatever works in it." if self.deadline else ""
        return "\n".join(
            filter(
                None,
                (
                    f"{self.title} ({short(self.image)}). Its home stays as it is.",
                    f"It moves {self.when}, and is away for less than {self.seconds:.0f} s. {last}".rstrip(),
                    f"Changes: {self.changes or 'nothing that is known'}.",
                    f"Would end: {'; '.join(self.ends)}." if self.ends else "",
                    f"Nobody works in it once nothing computes and nobody has typed for {self.quiet:g} min. State that "
                    f"would be lost is kept for {self.keeps:g} h from then on, or from when you see this.",
                    *self._ways,
                    self._from_inside,
                ),
            )
        )

    @property
    def _ways(self) -> tuple[str, ...]:
        """How an owner answers; people who log in to a Hub have no shell on this machine."""
        name = self.session
        if self.page:
            return (f"At once, later, or not before a day, as you choose: {self.page}",)
        return (
            f"At once: refit migrate run --session {name}. Later: refit session updates snooze {name} 2h.",
            f"Not before a day: refit session updates mode {name} pin 2026-12-31.",
            f"More: refit session updates show {name}.",
        )

    @property
    def _from_inside(self) -> str:
        """How somebody answers who sits in the session; only a Hub's page of sessions hears more than a hold."""
        if not self.command:
            return "From inside the session: write 2h, and why, into ~/.config/refit/hold."
        hold = "`refit session hold 2h`"
        return f"From inside the session: {f'`refit session snooze 3h` or {hold}' if self.page else hold}."


def when(line: Decision) -> str:
    """When a session moves of itself, in words. Pure."""
    if line.reason in (Reason.ask, Reason.blocked):
        return f"once you agree ({line.why})"
    if line.reason is Reason.next_start:
        return "when it is started the next time"
    if line.at and not line.forced:
        return f"at {line.at:%Y-%m-%d %H:%M} UTC, if nobody works in it then"
    return "when nobody works in it"


def to_be_told(decisions: Iterable[Decision], events: Iterable[Event]) -> list[Decision]:
    """Those that are to move, and whose owners don't know of this image yet. Pure."""
    kinds = {
        (event.session, event.image): event.kind for event in events if event.kind in (Kind.noticed, Kind.withdrawn)
    }
    return [line for line in decisions if _waits(line) and kinds.get((line.session, line.new)) is not Kind.noticed]


def to_be_shown(decisions: Iterable[Decision], events: Iterable[Event]) -> list[Decision]:
    """Those that wait until their owners, who were told in another way, see the notice in the session itself. Pure."""
    pairs = {(event.session, event.image) for event in events if event.kind is Kind.noticed}
    return [line for line in decisions if line.reason is Reason.untold and (line.session, line.new) in pairs]


def to_be_reminded(
    decisions: Iterable[Decision],
    earlier: Iterable[Event],
    wishes: Mapping[str, UpdatePreferences],
    steps: Collection[float],
    now: datetime,
) -> list[tuple[Decision, float]]:
    """Those whose deadline is near, and how many hours before it that is; each step comes once for each deadline.

    An owner who has put it off or pinned it has answered, and isn't reminded as long as that holds.

    Args:
        decisions: a plan.
        earlier: the notices that were delivered, and the reminders that were sent.
        wishes: session → what its owner wants.
        steps: hours before a deadline.
        now: when.
    """
    events = list(earlier)
    marks = {
        (event.session, event.image, event.data["hours"], event.data["deadline"])
        for event in events
        if event.kind is Kind.reminded
    }
    noticed = {(event.session, event.image): event.at for event in events if event.kind is Kind.noticed}
    reminders = []
    for line in decisions:
        if not _waits(line) or not line.deadline or line.deadline <= now or _answered(wishes.get(line.session), now):
            continue
        # A process that has slept over a step doesn't tell of two at once.
        step = min((hours for hours in steps if line.deadline - timedelta(hours=hours) <= now), default=None)
        last = noticed.get((line.session, line.new))
        if step is None or (last and last >= line.deadline - timedelta(hours=step)):
            continue
        if (line.session, line.new, *reminder(line, step).values()) not in marks:
            reminders.append((line, step))
    return reminders


def to_be_untold(events: Iterable[Event], images: Mapping[str, str], image: str) -> tuple[str, ...]:
    """The sessions whose owners were told of an image, or tried to be, and that don't have it. Pure.

    Args:
        events: the notices, delivered or not.
        images: session → the image that it has.
        image: the one that isn't to come any more.
    """
    names = {event.session for event in events if event.image == image}
    return tuple(sorted(name for name in names if images.get(name, image) != image))


def called_off(session: str, image: str) -> tuple[str, str]:
    """Title and text for an owner who was told of an image that isn't to come any more. Pure."""
    return f"The session {session} stays as it is", f"Its move to the new image {short(image)} was called off."


def mark(line: Decision, step: float) -> str:
    """The line about a reminder, for people. Pure."""
    return f"{step:g} h before {line.deadline:%Y-%m-%d %H:%M} UTC"


def reminder(line: Decision, step: float) -> dict[str, Any]:
    """The record of a reminder so that it isn't sent again: hours before the deadline, and that deadline. Pure."""
    return {"hours": float(step), "deadline": f"{line.deadline:%Y-%m-%dT%H:%M}"}


def latest_pin(line: Decision, wish: UpdatePreferences, deadline: datetime | None, now: datetime) -> date | None:
    """Until which day an owner may pin a session by a button; none: not at all. Pure.

    No button takes back that somebody is to be asked, or has set a date for force.
    """
    if wish.mode not in (None, Mode.when_idle, Mode.pin) or line.reason in (Reason.ask, Reason.next_start):
        return None
    week = now + timedelta(days=PIN_DAYS)
    # The day before a deadline has begun by then on every clock on which its owner may read it.
    until = (min(week, deadline - timedelta(days=1)) if deadline else week).date()
    return until if until > (now + timedelta(days=1)).date() else None


def answers(pin: date | None, *, agrees: bool = True) -> tuple[tuple[str, str], ...]:
    """The answers of an owner who may pin the session until that day, and may agree by such an answer. Pure."""
    given = tuple(answer for answer in ANSWERS if agrees or answer[0] != AGREES)
    return (*given, (f"{PIN}{pin}", f"Not before {pin}")) if pin else given


def wish_of(answer: str, image: str, now: datetime, pin: date | None = None, *, agrees: bool = True) -> dict[str, Any]:
    """The fields of a wish that an answer sets; none for what isn't an answer. Pure.

    Args:
        answer: from a page; the owner of the home may have written anything.
        image: digest of the image that is to come.
        now: when it was heard.
        pin: until which day the session may be pinned now; none: not at all.
        agrees: whether an answer from inside of the session may agree to the image.
    """
    if answer.startswith(PIN) and pin:
        with suppress(ValueError):
            return chosen_mode(Mode.pin, str(min(date.fromisoformat(answer.removeprefix(PIN)), pin)))
    if answer not in dict(answers(None, agrees=agrees)):
        return {}
    return {"agreed": image} if answer == AGREES else {"snoozed_until": now + read_duration(answer)}


def _waits(line: Decision) -> bool:
    return line.action in (Action.later, Action.wait) and line.reason not in _SILENT


def _answered(wish: UpdatePreferences | None, now: datetime) -> bool:
    if wish is None:
        return False
    return wish.mode is Mode.pin or bool(wish.snoozed_until and wish.snoozed_until > now)


def is_called_off(events: Sequence[Event]) -> bool:
    """Whether the last of a session's notices was taken back. Pure.

    Args:
        events: its notices, delivered or not, and what took them back, oldest first.
    """
    return bool(events) and events[-1].kind is Kind.withdrawn


def first_told(events: Iterable[Event], kind: Kind) -> dict[tuple[str, str], datetime]:
    """Session and the image that it has → when it first happened that a notice of this kind came. Pure.

    Args:
        events: the history, or what of it is of that kind or takes notices back.
        kind: `noticed` for notices that were delivered, `seen` for those that somebody has seen.
    """
    first: dict[tuple[str, str], datetime] = {}
    for event in events:
        if event.kind is Kind.withdrawn:
            first = {key: at for key, at in first.items() if key[0] != event.session}
        elif event.kind is kind:
            first.setdefault((event.session, event.data["from"]), event.at)
    return first
