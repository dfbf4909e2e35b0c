"""Waves: who is in which, and what lets the next begin once its bake time is over. Pure.

Volunteers come first (wave 0), then growing parts of all. Which part a session is in depends on its name and the new
image alone: the same today and tomorrow, whoever comes or goes, and another one with the next image.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from flows.core.settings.policy import RolloutPolicy
from flows.migrations.planning.rollout import Gate, Health

VOLUNTEERS = 0
Approval = tuple[int, datetime]
"""The last wave that a person has approved, and when."""


def position(session: str, image: str) -> float:
    """Where a session stands in the rollout of an image, from 0 to 100 (percent)."""
    digest = hashlib.sha256(f"{image} {session}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48 * 100


def wave(place: float, percents: Sequence[float]) -> int:
    """The wave of a session that is no volunteer, by its position."""
    return 1 + bisect_right(percents, place)


def canary(sessions: Iterable[tuple[str, str]], percents: Sequence[float]) -> str:
    """The session that has to go first because nobody else is in the first wave; empty: somebody is.

    Chosen once, when a rollout begins.

    Args:
        sessions: name and new image of each.
        percents: the waves.
    """
    first = min(((position(*session), session[0]) for session in sessions), default=(0.0, ""))
    return first[1] if wave(first[0], percents) > 1 else ""


def title(number: int, percents: Sequence[float]) -> str:
    """The title of a wave."""
    return "volunteers" if number == VOLUNTEERS else f"{percents[number - 1]:g} %"


@dataclass(frozen=True)
class Tally:
    """The count of a wave's results so far.

    Attributes:
        moved: sessions that run on the new image.
        failed: sessions that were rolled back or are held.
        damaged: those among them whose home was changed.
        unknown: sessions of which nobody knows what became of them.
        left: sessions that are still to be moved, and can be.
        baked: seconds since the last move.
    """

    moved: int = 0
    failed: int = 0
    damaged: int = 0
    unknown: int = 0
    left: int = 0
    baked: float = 0.0


def judge(tally: Tally, policy: RolloutPolicy) -> Health:
    """The verdict of a wave on the new image.

    One damaged home is one too many. A wave in which nobody moved has shown nothing, and nor has one of which the
    outcome isn't known: a person has to look.
    """
    tried = tally.moved + tally.failed
    if tally.damaged or tally.failed * 100 > policy.failures * (tried + tally.left):
        return Health.failed
    if tally.left:
        return Health.open
    if tally.unknown or not tally.moved:
        return Health.inconclusive
    return Health.passed if tally.baked >= policy.bake_minutes * 60 else Health.open


@dataclass(frozen=True)
class Trial:
    """The result of a session's last move to an image.

    Attributes:
        image: digest of the image.
        wave: the session's wave.
        ended: when the move has ended; none: it goes on, or was interrupted.
        moved: it runs on the new image.
        failed: it was rolled back or is held.
        damaged: it is held, or its home isn't as it was.
        fell: it was moved, and doesn't run any more though it ought to.
    """

    image: str
    wave: int
    ended: datetime | None
    moved: bool = False
    failed: bool = False
    damaged: bool = False
    fell: bool = False


def gates(
    trials: Iterable[Trial],
    left: Mapping[tuple[str, int], int],
    approved: Mapping[str, Approval],
    policy: RolloutPolicy,
    now: datetime,
) -> dict[tuple[str, int], Gate]:
    """The health of the waves that have begun.

    Args:
        trials: the last move of each session; those that were deferred or skipped say nothing.
        left: image and wave → how many sessions are still to be moved, and can be.
        approved: image → the last wave that a person has approved, and when: later failures count again.
        policy: how much may fail, and for how long a wave bakes.
        now: when that is asked.
    """
    trials_of_waves: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        if trial.moved or trial.failed or trial.ended is None:
            trials_of_waves.setdefault((trial.image, trial.wave), []).append(trial)
    latest = {image: max(wave for other, wave in trials_of_waves if other == image) for image, _ in trials_of_waves}
    return {
        (image, wave): _gate(
            members,
            left=left.get((image, wave), 0),
            approved=approved[image][1] if wave <= approved.get(image, (-1, now))[0] else None,
            followed=wave < latest[image],
            policy=policy,
            now=now,
        )
        for (image, wave), members in trials_of_waves.items()
    }


def _gate(
    members: Sequence[Trial],
    *,
    left: int,
    approved: datetime | None,
    followed: bool,
    policy: RolloutPolicy,
    now: datetime,
) -> Gate:
    """The gate behind a wave; `followed`: the next has begun, so that whoever comes later holds nobody up."""
    since = max((trial.ended for trial in members if trial.ended), default=now)
    under_way = sum(trial.ended is None for trial in members)
    # A session that ends long after its move may have other reasons: that counts only until the next wave has begun.
    failed = [trial for trial in members if trial.failed or (trial.fell and not followed)]
    bad = [trial for trial in failed if not (approved and trial.ended and trial.ended <= approved)]
    tally = Tally(
        moved=sum(trial.moved for trial in members if trial not in bad),
        failed=len(bad),
        damaged=sum(trial.damaged for trial in bad),
        left=under_way if followed else left + under_way,
        baked=(now - since).total_seconds(),
    )
    health = judge(tally, policy)
    if (approved and health is not Health.failed) or (followed and health is Health.open):
        return Gate(Health.passed, since)
    if policy.approval and health is Health.passed:
        return Gate(Health.unapproved, since)
    return Gate(health, since)
