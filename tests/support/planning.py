"""Sessions to be planned, and the rollout of an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from flows.catalog.model import Access
from flows.core.settings.policy import RolloutPolicy, SessionPolicy
from flows.migrations.planning.rollout import (
    Candidate,
    Decision,
    Host,
    PlanInput,
)
from flows.migrations.planning.wave_scheduler import WaveScheduler
from flows.sessions.activity.evidence import Evidence, Verdict
from flows.sessions.activity.seen import Seen
from flows.sessions.model import HomeRef, Session, TokenRef

NEW, OLD = "sha256:new", "sha256:old"
# Late on the evening before clocks are put back in Zurich.
NOW = datetime(2026, 10, 24, 20, 30, 20, tzinfo=UTC)
ZURICH = "Europe/Zurich"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
IDLE, BUSY = Verdict.idle, Verdict.busy


def candidate(name: str = "ada", verdict: Verdict | None = IDLE, **changes: object) -> Candidate:
    session = Session(name, "p0", "2026a", OLD, 200001, HomeRef("/h"), TokenRef("/t"), Access())
    seen = Seen(name, verdict, NOW - HOUR, True, (Evidence(verdict, "python train.py"),)) if verdict else None
    return replace(Candidate(session, True, seen=seen), **changes)  # type: ignore[arg-type]


def policy(**changes: object) -> SessionPolicy:
    return SessionPolicy.model_validate({"time_zone": ZURICH, **changes})


def rollout(*, now: datetime = NOW, hosts: Mapping[str, Host] | None = None, **changes: object) -> PlanInput:
    targets = {(profile, "2026a"): NEW for profile in ("p0", "p1")}
    return PlanInput(now, targets, RolloutPolicy.model_validate({"waves": [100], **changes}), hosts=hosts or {})


def only(which: Candidate, shared: PlanInput | None = None) -> Decision:
    (line,) = WaveScheduler(shared or rollout(), [which]).decisions
    return line
