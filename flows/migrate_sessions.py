"""Move sessions onto the newest tested images of their profiles, one wave of moves after the other."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows import command
from flows.errors import RefitError
from flows.images import evidence
from flows.images.publish import current
from flows.images.registry import Registry
from flows.migrations.carry import Carrier, Result
from flows.migrations.journal import Journal, Move
from flows.migrations.move import FINAL, State
from flows.migrations.plan import Action, Candidate, Decision, ImageKey, Reason, plan, plan_named
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from flows.settings import Settings
from flows.settings import load as load_settings

# A task is a wave, not a session: Prefect's cost per task run must not grow with the number of sessions.
WAVE = 20
# Each move stops, copies and starts: more at once make every single downtime longer.
PARALLEL_MOVES = 4


@task(task_run_name="plan", cache_policy=NO_CACHE)
def make_plan(names: Sequence[str], to: str, settings: Settings) -> tuple[Decision, ...]:
    """One decision per session: what it moves to, or why it stays."""
    carrier = Carrier.open(settings)
    sessions, candidates = carrier.sessions, _candidates(carrier.sessions, carrier.journal)
    asked = [c.session for c in candidates if not names or c.session.name in names]
    targets = _targets(asked, to, settings)
    if not names:
        return plan(candidates, targets)
    deleted = sessions.store.homes().keys() - {c.session.name for c in candidates}
    return tuple(plan_named(name, candidates, targets, deleted=deleted) for name in dict.fromkeys(names))


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

    with ThreadPoolExecutor(PARALLEL_MOVES) as pool, command.ending_all():
        return tuple(pool.map(move, decisions))


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
    waves = [decisions[start : start + WAVE] for start in range(0, len(decisions), WAVE)]
    results = tuple(result for number, wave in enumerate(waves, 1) for result in move_wave(number, wave, settings))
    _show(results)
    return results


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


def _candidates(sessions: Sessions, journal: Journal) -> tuple[Candidate, ...]:
    last = journal.latest()
    return tuple(
        Candidate(status.session, status.running is Running.running, _obstacle(last.get(status.session.name)))
        for status in sessions.all()
    )


def _obstacle(move: Move | None) -> Reason | None:
    if move is None or (move.state in FINAL and move.state is not State.held):
        return None
    return Reason.held if move.state is State.held else Reason.unfinished


def _targets(sessions: Iterable[Session], to: str, settings: Settings) -> Mapping[ImageKey, str]:
    """The digest that each profile of each release is to be on.

    Raises:
        RefitError: `to` names no image.
    """
    registry, wanted = Registry(settings), {(session.profile, session.release) for session in sessions}
    if not to:
        found = {key: current(*key, registry) for key in wanted}
        return {key: digest for key, digest in found.items() if digest}
    digest = registry.digest(settings.repository, to)
    if digest is None:
        raise RefitError(
            f"There is no image {to!r} in {registry.host}/{settings.repository}.",
            fix="`refit images` lists the tags that are there.",
        )
    labels = registry.config(settings.repository, registry.manifest(settings.repository, digest))["config"]["Labels"]
    made_for = (labels["io.refit.profile"], labels["io.refit.release"])
    if made_for not in wanted:
        raise RefitError(
            f"The image {to!r} is not for any of these sessions.",
            why=f"It is {made_for[0]} of release {made_for[1]}.",
            fix="choose an image of the profile and release that the session has; `refit session list` shows them.",
        )
    return {made_for: digest}


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
    return Result(decision.session, decision.old, decision.new, "", None, state, decision.reason or "")


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
