"""The consent of the people in a session: from when on, what it waits for, and until when at most. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from flows.core import hours
from flows.core.hours import Hours
from flows.core.settings.policy import Mode
from flows.migrations.planning.rollout import Candidate, PlanInput, Reason
from flows.migrations.planning.timetable import Calendar
from flows.sessions.activity.evidence import Verdict
from flows.sessions.activity.seen import Seen

UNTOLD = "no notice was delivered, so its deadline doesn't count"
_DAY, _HOUR = 86_400, 3600


@dataclass(frozen=True, slots=True)
class Constraints:
    """On what terms a session is moved; moments are seconds since 1970.

    Attributes:
        least: it is never moved before, not by force either.
        ready: it isn't moved before of itself.
        reason: why `ready` is as late as it is; none: it isn't late.
        waits: an event that has to come first, at a time that nobody knows; none: no such event.
        detail: more of that.
        deadline: when it is moved whether it fits or not; none: never.
        free: its owner has agreed, so neither hours nor waves keep it.
    """

    least: int
    ready: int
    reason: Reason | None = None
    waits: Reason | None = None
    detail: str = ""
    deadline: int | None = None
    free: bool = False


def terms(candidate: Candidate, new: str, rollout: PlanInput) -> Constraints:
    """The terms on which a session is moved to the image `new`."""
    now, clock = math.ceil(rollout.now.timestamp()), zone_of(candidate)
    pinned = _pinned(candidate, clock)
    if candidate.wish.agreed == new:
        pin = Reason.pinned if pinned > now else None
        return Constraints(max(now, pinned), max(now, pinned), pin, free=True)
    deadline = _deadline(candidate, clock)
    floors = ((now, None), *_floors(candidate, rollout, pinned, deadline))
    ready, reason = max(floors, key=lambda floor: floor[0])
    waits, detail = _waits(candidate)
    if waits and mode(candidate) is Mode.forced_by and candidate.notified is None:
        detail = f"{detail}; {UNTOLD}" if detail else UNTOLD
    return Constraints(max(now, pinned), ready, reason, waits, detail, deadline)


def objection(candidate: Candidate, new: str, rollout: PlanInput) -> str:
    """Why a session isn't to be stopped just now, whatever was planned; empty: it is."""
    consent = terms(candidate, new, rollout)
    if consent.waits:
        return "; ".join(filter(None, (consent.waits.text, consent.detail)))
    if consent.reason and consent.ready > rollout.now.timestamp():
        return consent.reason.text
    quiet = (*candidate.policy.quiet, *candidate.wish.quiet)
    closed = None if consent.free else _closed(candidate, rollout, candidate.policy.windows, quiet)
    return closed.text if closed else ""


def frozen(candidate: Candidate, rollout: PlanInput) -> str:
    """Why a session isn't to be stopped on this day, not by force either; empty: it may be."""
    closed = _closed(candidate, rollout)
    return closed.text if closed else ""


def _closed(
    candidate: Candidate, rollout: PlanInput, windows: Sequence[Hours] = (), quiet: Sequence[Hours] = ()
) -> Reason | None:
    """The reason of the calendar for which a session may not be stopped at this very second."""
    calendar = Calendar(zone_of(candidate), rollout.policy.freezes, windows, quiet, length=1)
    return calendar.why(math.floor(rollout.now.timestamp()))


def starting(candidate: Candidate, now: datetime) -> Candidate:
    """A session as it is while its owner starts it: nobody is in it, so that nothing but freezes keeps it. Pure."""
    anytime = {"mode": Mode.when_idle, "windows": (), "quiet": ()}
    return replace(
        candidate,
        running=True,
        policy=candidate.policy.model_copy(update=anytime),
        wish=replace(candidate.wish, mode=Mode.when_idle, snoozed_until=None, quiet=()),
        seen=Seen(candidate.session.name, Verdict.idle, now, True, ()),
        rests_until=None,
    )


def deadline_if_told(candidate: Candidate, new: str, rollout: PlanInput) -> datetime | None:
    """When a session would be moved by force, had its owner been told by now; none: never."""
    notified = replace(candidate, notified=candidate.notified or rollout.now)
    deadline = terms(notified, new, rollout).deadline
    return None if deadline is None else datetime.fromtimestamp(deadline, UTC)


def keep_hours(candidate: Candidate, rollout: PlanInput) -> float:
    """For how many hours a session in which nobody works keeps what a stop would lose."""
    return rollout.idle_state_hours if candidate.policy.idle_state_hours is None else candidate.policy.idle_state_hours


def zone_of(candidate: Candidate) -> ZoneInfo:
    """The time zone of a session's hours."""
    return hours.zone(candidate.wish.time_zone) if candidate.wish.time_zone else candidate.policy.zone


def mode(candidate: Candidate) -> Mode:
    """When a session moves.

    An image by another person's own recipe comes to nobody who hasn't agreed to this very image. A mode is chosen once
    for all images, and from inside a session as well, so none but a pin counts then.
    """
    if candidate.by and candidate.wish.mode is not Mode.pin:
        return Mode.ask
    return candidate.wish.mode or candidate.policy.mode


def _pinned(candidate: Candidate, clock: ZoneInfo) -> int:
    """When a pin ends; 0: there is none."""
    until = candidate.wish.until
    return hours.midnight(until, clock) if until and mode(candidate) is Mode.pin else 0


def _floors(
    candidate: Candidate, rollout: PlanInput, pinned: int, deadline: int | None
) -> Iterator[tuple[int, Reason | None]]:
    """Moments before which a session isn't moved of itself, and why."""
    if pinned:
        yield pinned, Reason.pinned
    if candidate.wish.snoozed_until:
        snoozed = math.ceil(candidate.wish.snoozed_until.timestamp())
        yield snoozed if deadline is None else min(snoozed, deadline), Reason.snoozed
    if candidate.rests_until:
        yield math.ceil(candidate.rests_until.timestamp()), Reason.deferred
    if candidate.seen and candidate.seen.verdict is Verdict.state:
        keep = keep_hours(candidate, rollout) * _HOUR
        yield math.ceil(_kept_since(candidate, candidate.seen) + keep), Reason.state


def _kept_since(candidate: Candidate, seen: Seen) -> float:
    """From when on it is counted for how long a session keeps what a stop would lose (seconds since 1970)."""
    if candidate.noticed is None or _lets_state_go(candidate):
        return seen.since.timestamp()
    return max(seen.since, candidate.noticed).timestamp()


def _lets_state_go(candidate: Candidate) -> bool:
    """Whether its owner has said, once and for all, that it may move whenever nobody works in it."""
    return candidate.wish.mode is Mode.when_idle


def _deadline(candidate: Candidate, clock: ZoneInfo) -> int | None:
    """When a session is moved whether it fits or not: its clock starts with a notice that was delivered."""
    if candidate.notified is None or candidate.by:
        return None
    notified_at = candidate.notified.timestamp()
    soonest, days = notified_at + candidate.policy.notice_hours * _HOUR, candidate.policy.deadline_days
    if candidate.wish.until and mode(candidate) is Mode.forced_by:
        last = hours.midnight(candidate.wish.until + timedelta(days=1), clock)
        return int(max(last, soonest))
    return int(max(notified_at + days * _DAY, soonest)) if days else None


def _waits(candidate: Candidate) -> tuple[Reason | None, str]:
    """The reason for which a session has to wait; unknown activity is activity."""
    chosen, seen = mode(candidate), candidate.seen
    if chosen is Mode.ask or candidate.by:  # a pin that has ended
        return Reason.ask, f"{candidate.by}'s own recipe made it" if candidate.by else ""
    if chosen is Mode.next_start:
        return Reason.next_start, ""
    if seen is None:
        return Reason.unknown, ""
    if seen.verdict is Verdict.state and candidate.noticed is None and not _lets_state_go(candidate):
        return Reason.untold, ""
    if seen.verdict is not Verdict.busy:
        return None, ""
    return Reason.busy, "; ".join(evidence.text for evidence in seen.evidence if evidence.says is Verdict.busy)
