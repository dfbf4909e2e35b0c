"""Where a rollout stands: plain data. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flows.migrations.planning.rollout import RolloutStatus
from flows.migrations.planning.wave_gates import Approval


@dataclass(frozen=True)
class RolloutState:
    """How the rollout of one image stands.

    Attributes:
        image: its digest.
        profile: stem of the profile's tag.
        release: e.g. `2026a`.
        begun: when; moves to this image before that don't count.
        canary: the session that goes first; empty: there are enough in the first wave.
        way: whether it goes on.
        approved: the last wave that a person has approved, and when; none: none.
    """

    image: str
    profile: str
    release: str
    begun: datetime
    canary: str
    way: RolloutStatus
    approved: Approval | None = None
