"""The cost of a task run in Prefect: why a task is a part of a wave, not a session."""

from __future__ import annotations

from time import monotonic

from bench.results import Row
from flows.migrations.rollouts.reconcile import PART

SESSIONS = 400
GOAL = 1.0  # ms


def run() -> list[Row]:
    """400 calls that do nothing, in tasks of 20 and in a task each: Prefect's milliseconds a call."""
    alone, parts, each = (1000 * _seconds(size) / SESSIONS for size in (0, PART, 1))
    name = f"Prefect's cost a session, with a task for each {PART}"
    ours, theirs = max(0.0, parts - alone), max(0.0, each - alone)
    return [Row(name, "ms", f"≤ {GOAL:g} ms", ours, ours <= GOAL, {"a task for each session": theirs})]


def _seconds(size: int) -> float:
    """How long all calls take in tasks of so many; 0: in none."""
    from prefect import flow, task  # noqa: PLC0415 - takes a second
    from prefect.cache_policies import NO_CACHE  # noqa: PLC0415

    def calls(number: int) -> None:
        for session in range(number):
            str(session)

    @task(cache_policy=NO_CACHE)
    def part(number: int) -> None:
        calls(number)

    @flow
    def all_calls() -> float:
        part(0)  # the first one of a process takes longer
        started = monotonic()
        for _ in range(0, SESSIONS, size or SESSIONS):
            (part if size else calls)(size or SESSIONS)
        return monotonic() - started

    return all_calls()
