"""The result of a look at a session: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flows.core.formatting import some
from flows.sessions.activity.evidence import Evidence, Verdict


@dataclass(frozen=True)
class Seen:
    """The result of a look at a session, since when that holds, and whether it may be interrupted without a word."""

    session: str
    verdict: Verdict
    since: datetime
    may_interrupt: bool
    evidence: tuple[Evidence, ...]
    failed: bool = False
    """Whether nobody could look."""


def work_in(seen: Seen) -> str:
    """The work that a stop would interrupt, or the state that it would lose; empty: none. Pure."""
    if seen.verdict is Verdict.idle:
        return ""
    texts = [item.text for item in seen.evidence if item.says is seen.verdict]
    return some(texts, between="; ") or f"it is {seen.verdict}"
