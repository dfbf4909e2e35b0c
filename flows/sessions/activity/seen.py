"""The result of a look at a session: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flows.sessions.activity.evidence import Evidence, Verdict


@dataclass(frozen=True)
class Seen:
    """The result of a look at a session, since when that holds, and whether it may be interrupted without a word."""

    session: str
    verdict: Verdict
    since: datetime
    may_interrupt: bool
    evidence: tuple[Evidence, ...]
