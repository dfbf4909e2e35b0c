"""Move sessions onto the newest tested images of their profiles, one wave of moves after the other."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import count, groupby

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows import command
from flows.errors import RefitError
from flows.images.registry import Registry
from flows.migrations import waves
from flows.migrations.carry import Carrier, Result
from flows.migrations.move import State
from flows.migrations.rollout import Action, Decision, Health, Reason
from flows.migrations.waves import Tally
from flows.plan_migration import plan_migration
from flows.policy import RolloutPolicy
from flows.publishing import evidence
from flows.settings import Settings
from flows.settings import load as load_settings

# A task is a wave, not a session: Prefect's cost per task run must not grow with the number of sessions.
WAVE = 20
# Each move stops, copies and starts: more at once make every single downtime longer.
PARALLEL_MOVES = 4


@task(task_run_name="plan", cache_policy=NO_CACHE)
def make_plan(names: Sequence[str], to: str, settings: Settings) -> tuple[Decision, ...]:
    """One decision per session: what it moves to, or why it stays."""
    return plan_migration(names, to, settings)


@task(task_run_name="wave {number}", cache_policy=NO_CACHE)
def move_wave(number: int, decisions: Sequence[Decision], settings: Settings) -> tuple[Result, ...]:
    """Carry out the moves of one wave; one that fails is rolled back and stops no other."""
    logger, carrier, differences = get_run_logger(), Carrier.open(settings), _Differences(settings)

    def move(decision: Decision) -> Result:
        try:
            packages = differences(decision.old, decision.new) if decision.action is Action.migrate else ""
            result = carrier.carry_out(decision, packages)
        except RefitError as error:
            result = replace(_foreseen(decision), state=State.skipped, reason=error.what, error=str(error))
        logger.info("%s: %s %s", result.session, result.state, result.reason)
        return result

    with ThreadPoolExecutor(_at_once(settings)) as pool, command.ending_all():
        return tuple(pool.map(move, decisions))


def _at_once(settings: Settings) -> int:
    """How many sessions of this machine may be away at the same time; the strictest cap holds for all of them."""
    caps = settings.migration.unavailable
    return min(cap for cap in (PARALLEL_MOVES, caps.rollout, caps.host, caps.profile) if cap)


@flow(name="migrate-sessions", flow_run_name="migrate sessions")
def migrate_sessions(sessions: list[str] | None = None, to: str = "", dry_run: bool = False) -> tuple[Result, ...]:
    """Move sessions onto the newest tested images of their profiles.

    Args:
        sessions: Names of sessions. Empty means all.
        to: Tag or digest of an image to move to. Empty means the newest tested image of each session's profile.
        dry_run: Only show what would be done.
    """
    settings = load_settings()
    decisions = make_plan(sessions or [], to, settings)
    if dry_run:
        return tuple(_foreseen(decision) for decision in decisions)
    results = _in_waves(decisions, lambda number, part: move_wave(number, part, settings), settings.migration)
    _show(results)
    return results


def _in_waves(
    decisions: Iterable[Decision], move: Callable[[int, Sequence[Decision]], Sequence[Result]], policy: RolloutPolicy
) -> tuple[Result, ...]:
    """Carry out one wave after the other, in parts; after a wave in which an image failed, nobody else is moved to it.

    Args:
        decisions: the plan.
        move: carries out one part, which has a number.
        policy: says how much may fail.
    """
    results: list[Result] = []
    number, stopped = count(1), dict[str, str]()
    for wave, members in _waves(decisions):
        going = [each for each in members if each.new not in stopped]
        parts = (going[start : start + WAVE] for start in range(0, len(going), WAVE))
        done = [result for part in parts for result in move(next(number), part)]
        results += [*done, *(_stopped(each, stopped[each.new]) for each in members if each.new in stopped)]
        for image in {result.new for result in done}:
            health = _health([result for result in done if result.new == image], policy)
            if health is not Health.passed:
                stopped[image] = f"{waves.title(wave, policy.waves)}: {health}"
    return tuple(results)


def _waves(decisions: Iterable[Decision]) -> Iterator[tuple[int, list[Decision]]]:
    """The members of each wave, in their order; those who stay are with the first."""
    ordered = sorted(decisions, key=lambda decision: (decision.wave or 0, str(decision.at or ""), decision.session))
    for wave, members in groupby(ordered, key=lambda decision: decision.wave or 0):
        yield wave, list(members)


def _health(results: Sequence[Result], policy: RolloutPolicy) -> Health:
    """What a wave says of an image; one in which nobody was to be moved says nothing against it."""
    moved, failed = sum(result.moved for result in results), sum(result.failed for result in results)
    if not moved and not failed:
        return Health.passed
    # What is held could not be undone: the worst that can happen to a session.
    damaged = sum(result.state is State.held for result in results)
    return waves.judge(Tally(moved=moved, failed=failed, damaged=damaged, baked=math.inf), policy)


def _stopped(decision: Decision, why: str) -> Result:
    result = _foreseen(decision)
    moves = decision.action is Action.migrate
    return replace(result, state=State.skipped, reason=f"{Reason.gate}; {why}") if moves else result


@flow(name="resume-migrations", flow_run_name="resume migrations")
def resume_migrations(held: str = "") -> tuple[Result, ...]:
    """Bring every move that a crash interrupted to its end, forwards or backwards.

    Args:
        held: Name of a session whose last move is held: try to end that, too.
    """
    carrier = Carrier.open(load_settings())
    reopened = carrier.reopen(held) if held else None
    results = (*([reopened] if reopened else []), *carrier.resume_all())
    _show(results)
    return results


class _Differences:
    """What changes between two images, in words; each pair is looked up once."""

    def __init__(self, settings: Settings) -> None:
        self._registry = Registry(settings)
        self._packages = cache(self._look_up)

    def __call__(self, old: str, new: str) -> str:
        return str(evidence.changes(self._packages(old), self._packages(new)))

    def _look_up(self, digest: str) -> Mapping[str, str]:
        return evidence.packages(self._registry, digest)


def _foreseen(decision: Decision) -> Result:
    state = State.planned if decision.action is Action.migrate else State.skipped
    return Result(decision.session, decision.old, decision.new, "", None, state, decision.why)


def _show(results: Iterable[Result]) -> None:
    create_table_artifact(
        key="moves",
        description="Moves of sessions",
        table=[
            {
                "session": r.session,
                "from": r.old,
                "to": r.new,
                "packages": r.packages,
                "downtime (s)": r.downtime and round(r.downtime, 2),
                "result": r.state,
                "why": r.reason,
            }
            for r in results
        ],
    )
