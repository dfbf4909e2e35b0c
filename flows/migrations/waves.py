"""Waves: who is in which, and what lets the next begin. Pure.

Volunteers come first (wave 0), then growing parts of all. Which part a session is in depends on its name and the new
image alone: the same today and tomorrow, whoever comes or goes, and another one with the next image.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flows.migrations.rollout import Health
from flows.policy import RolloutPolicy

VOLUNTEERS = 0


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
    """What a wave is called."""
    return "volunteers" if number == VOLUNTEERS else f"{percents[number - 1]:g} %"


@dataclass(frozen=True)
class Tally:
    """What has become of a wave so far.

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
    """What a wave says of the new image.

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
