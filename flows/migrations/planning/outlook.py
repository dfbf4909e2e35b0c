"""The outlook of one session, for its owner: when it moves to the newest image, and on which conditions. Pure.

A plan looks into all sessions to decide about each. This needs no look: it says what holds whether somebody works in
the session or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from flows.core.settings.policy import Mode
from flows.migrations.planning.eligibility import why_not
from flows.migrations.planning.move_terms import mode, terms
from flows.migrations.planning.rollout import Candidate, PlanInput, Reason, RolloutStatus
from flows.sessions.activity.evidence import Verdict
from flows.sessions.activity.seen import Seen

_WAYS = {RolloutStatus.paused: Reason.paused, RolloutStatus.aborted: Reason.aborted}


@dataclass(frozen=True)
class Outlook:
    """The outlook of a session.

    Attributes:
        newest: digest of the image that it is to have; empty: it has that, or there is none.
        mode: when it moves, as its owner has chosen or its policy says.
        reason: why it waits, besides work in it; none: for no other reason.
        at: before which moment it doesn't move of itself; none: nothing but `reason` keeps it.
        deadline: when it moves whatever works in it; none: never, as far as its owner was told.
        agreed: its owner has agreed to be interrupted.
        by: another person whose own recipe made that image; empty: it is of the catalog, or its owner's.
    """

    mode: Mode
    newest: str = ""
    reason: Reason | None = None
    at: datetime | None = None
    deadline: datetime | None = None
    agreed: bool = False
    by: str = ""

    @property
    def is_behind(self) -> bool:
        """Whether there is another image for it."""
        return bool(self.newest)


def outlook(candidate: Candidate, rollout: PlanInput) -> Outlook:
    """The outlook of a session.

    Args:
        candidate: the session; `seen` isn't looked at.
        rollout: the moment, the newest images, and how their rollouts go.
    """
    chosen = mode(candidate)
    new = rollout.targets.get((candidate.session.profile, candidate.session.release), "")
    if not new or new == candidate.session.image:
        return Outlook(chosen)
    idle = Seen(candidate.session.name, Verdict.idle, rollout.now, True, ())
    held = terms(replace(candidate, seen=idle), new, rollout)
    later = held.ready > rollout.now.timestamp() + 1
    waits = held.reason if later and held.reason is Reason.pinned else held.waits
    reason = why_not(candidate, new) or _WAYS.get(rollout.ways.get(new, RolloutStatus.running)) or waits
    return Outlook(
        chosen,
        new,
        reason or (held.reason if later else None),
        datetime.fromtimestamp(held.ready, UTC) if later else None,
        None if held.deadline is None else datetime.fromtimestamp(held.deadline, UTC),
        held.free,
        candidate.by,
    )
