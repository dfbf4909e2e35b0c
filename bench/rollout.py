"""Planning a rollout over many sessions whose waves have all begun."""

from __future__ import annotations

import gc
import random
from datetime import UTC, date, datetime, timedelta
from time import monotonic

from bench.results import Row
from flows.catalog.model import Access
from flows.core.settings.policy import Mode, RolloutPolicy, SessionPolicy, Unavailable
from flows.migrations.planning.plan import plan_after
from flows.migrations.planning.rollout import Candidate, Host, PlanInput
from flows.migrations.planning.wave_gates import Trial
from flows.sessions.activity.evidence import Evidence, Verdict
from flows.sessions.activity.seen import Seen
from flows.sessions.model import HomeRef, Session, TokenRef
from flows.sessions.preferences import UpdatePreferences

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
OLD, NEW = "sha256:old", "sha256:new"
PROFILES, ON_A_HOST, OF_AN_OWNER = 24, 40, 3
ZONES = ("Europe/Zurich", "America/New_York", "Asia/Kolkata", "UTC")


def run() -> list[Row]:
    """Planning 10,000 and 100,000 sessions."""
    return [_planned(10_000, 1.0), _planned(100_000, 10.0)]


def world(number: int) -> list[Candidate]:
    """Sessions of three per owner and forty per host: two thirds idle, in four time zones, one in five with a wish."""
    chance, access = random.Random(1), Access()
    policies = [
        SessionPolicy.model_validate(
            {"quiet": ["22:00-07:00"], "windows": windows, "time_zone": zone, "deadline_days": 7}
        )
        for windows in ([], ["mon-fri 18:00-22:00"])
        for zone in ZONES
    ]
    modes = (None, None, None, None, None, None, None, None, Mode.ask, Mode.pin)
    results = []
    for n in range(number):
        session = Session(f"s{n}", f"p{n % PROFILES}", "2026a", OLD, n, HomeRef("/h"), TokenRef("/t"), access)
        mode = chance.choice(modes)
        results.append(
            Candidate(
                session,
                running=chance.random() < 0.95,
                owner=f"o{n // OF_AN_OWNER}",
                host=f"h{n // ON_A_HOST}",
                policy=chance.choice(policies),
                wish=UpdatePreferences(mode, date(2026, 12, 1) if mode is Mode.pin else None),
                seen=_seen(session.name, chance.choice((Verdict.idle, Verdict.idle, Verdict.busy))),
                notified=NOW - timedelta(days=1) if chance.random() < 0.7 else None,
            )
        )
    return results


def _seen(name: str, verdict: Verdict) -> Seen:
    return Seen(
        name, verdict, NOW - timedelta(hours=1), True, (Evidence(verdict, "python train.py, 93 % CPU, pid 812"),)
    )


def _planned(number: int, goal: float) -> Row:
    sessions, hosts = world(number), {f"h{n}": Host({NEW: 10**9}) for n in range(number // ON_A_HOST)}
    policy = RolloutPolicy(unavailable=Unavailable(rollout=number // 50), bake_minutes=30)
    rollout = PlanInput(NOW, {(f"p{n}", "2026a"): NEW for n in range(PROFILES)}, policy, hosts=hosts)
    moved = [Trial(NEW, wave, NOW - timedelta(hours=1), moved=True) for wave in range(1, len(policy.waves) + 1)]
    gc.collect()
    started = monotonic()
    decisions, gates = plan_after(sessions, rollout, moved, {})
    seconds = monotonic() - started
    done = len(decisions) == number and len(gates) == len(moved)
    return Row(f"plan of {number:,} sessions", "s", f"≤ {goal:g} s", seconds, done and seconds <= goal)
