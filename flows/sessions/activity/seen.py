"""What a look at a session says: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flows.sessions.activity.evidence import Evidence, Verdict


@dataclass(frozen=True)
class Seen:
    """What a look at a session says, since when that holds, and whether it may be interrupted without a word."""

    session: str
    verdict: Verdict
    since: datetime
    may_interrupt: bool
    evidence: tuple[Evidence, ...]
