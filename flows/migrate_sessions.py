"""Move sessions onto the newest tested images of their profiles, one wave of moves after the other."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from typing import Literal

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from sqlalchemy import Engine

from flows.approve_wave import ask
from flows.core import operator_alerts
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.formatting import as_cells, short
from flows.core.leases import LeaseTaken, held, lease
from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from flows.core.waiting import wait_until
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.notifications import chart
from flows.migrations.notifications.fleet import Fleet, questions
from flows.migrations.notifications.notifier import Notifier
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.recovery import recover_all, reopen
from flows.migrations.results import NotRecovered, Result
from flows.migrations.rollouts.concurrency import ConcurrencyLimits, Shared, side_by_side
from flows.migrations.rollouts.control import steer
from flows.migrations.rollouts.reconcile import ROUNDS, FailureBudget, foreseen, reconcile
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.migrations.snapshots.clone_session import remove_killed
from flows.publishing import evidence, image_comparison
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.preferences import UpdatePreferences
from flows.sessions.wishes import PreferenceStore, caller

# How often those who wait ask whether anything has happened.
POLL_SECONDS = 2.0
# How often they look for answers on pages of JupyterLab: each session is asked for it.
HEAR_SECONDS = 30.0


@task(task_run_name="moves {number}", cache_policy=NO_CACHE)
def move_wave(
    number: int, decisions: Sequence[Decision], settings: Settings, doubts: FailureBudget
) -> tuple[Result, ...]:
    """Carry out the moves of a part of a wave, all that can be begun without doubts.

    A task is a part, not a session: Prefect's cost per task run must not grow with the number of sessions.
    """
    logger, executor, differences = get_run_logger(), MoveExecutor.open(settings), _Differences(settings)

    def move(decision: Decision) -> Result:
        if doubt := doubts.about(decision):
            return replace(foreseen(decision), reason=doubt)
        try:
            packages = differences(decision.old, decision.new) if decision.action is Action.migrate else ""
            result = executor.carry_out(decision, packages)
        except RefitError as error:
            result = replace(foreseen(decision), state=State.skipped, reason=error.what, error=str(error))
        doubts.note(decision, result)
        logger.info("%s: %s %s", result.session, result.state, result.reason)
        return result

    return side_by_side(decisions, move, _limits(executor, settings), partial(_elsewhere, executor), executor.leaving)


def _at_once(settings: Settings, most: int) -> int:
    """How many sessions may be away at the same time, whosever they are: all are on this host."""
    caps = settings.migration.unavailable
    return min(cap for cap in (most, caps.rollout, caps.host) if cap)


def _limits(executor: MoveExecutor, settings: Settings) -> ConcurrencyLimits:
    """How many sessions may be away at the same time, of an owner and of a profile, too."""
    store, policy = executor.sessions.store, settings.migration.unavailable
    each = {kind: cap for kind, cap in (("owner", policy.owner), ("profile", policy.profile)) if cap}
    wishes = PreferenceStore(store.database).all() if policy.owner else {}
    profiles = {session.name: session.profile for session in store.sessions()} if policy.profile else {}

    def shared(name: str) -> tuple[Shared, ...]:
        return ("owner", wishes.get(name, UpdatePreferences()).owner), ("profile", profiles.get(name, ""))

    return ConcurrencyLimits(_at_once(settings, executor.sessions.engine.at_once), each, shared)


def _elsewhere(executor: MoveExecutor, here: Collection[str]) -> frozenset[str]:
    """The sessions that other runs move just now."""
    leased = held(executor.journal.database, "session ", besides={f"session {name}" for name in here})
    return frozenset(filter(executor.journal.unfinished, (name.removeprefix("session ") for name in leased)))


@flow(name="migrate-sessions", flow_run_name="migrate sessions")
def migrate_sessions(
    sessions: list[str] | None = None,
    to: str = "",
    dry_run: bool = False,
    once: bool = False,
    only_begun: bool = False,
) -> tuple[Result, ...]:
    """Move sessions onto the newest tested images of their profiles, each as soon as it may be moved.

    Args:
        sessions: Names of sessions, which are moved at once. Empty means all, each at its time.
        to: Tag or digest of an image to move to. Empty means the newest tested image of each session's profile.
        dry_run: Only show what would be done.
        once: Don't wait for sessions that can't be moved yet.
        only_begun: Go on with the rollouts that have begun, and begin none.
    """
    settings = load_settings()
    planning = SessionPlanner(settings, only_begun=only_begun)
    if dry_run:
        return tuple(foreseen(line) for line in planning.plan(sessions or [], to))
    if sessions:
        planned = planning.plan(sessions, to)
        planning.agree(planned)
        results = move_wave(1, planned, settings, FailureBudget(planned))
        _show(results)
        _alert(results, settings)
        return results

    with _alone(planning.database) as alone:
        if not alone:
            return _left_to_another_run(planning, to)
        recovered, stuck = _recovered(settings)  # what a run that was killed had begun
        _alert(recovered, settings)
        if only_begun and not planning.unfinished():
            ask(())
            return (*recovered, *stuck)
        migration = _Migration(planning, to, settings)
        results = reconcile(migration, _Watch(planning.database, migration.hear), settings.migration, once=once)
    _show((*results, *stuck))
    return (*results, *stuck)


def _left_to_another_run(planning: SessionPlanner, to: str) -> tuple[Result, ...]:
    if not to:
        planning.begin()  # the other run may have been told to go on with what has begun alone
    get_run_logger().warning("Another run moves sessions already; it sees within minutes what has changed since.")
    elsewhere = (foreseen(line) for line in planning.plan([], to))
    return tuple(replace(line, reason=line.reason or "another run moves it") for line in elsewhere)


def _recovered(settings: Settings) -> tuple[tuple[Result, ...], tuple[Result, ...]]:
    """The results of moves of killed runs, and those that can't be recovered just now."""
    executor, logger = MoveExecutor.open(settings), get_run_logger()
    for name in remove_killed(executor.sessions):
        logger.warning("%s was to begin with a copy that is incomplete; it is removed", name)
    try:
        return recover_all(executor), ()
    except NotRecovered as error:
        for name, problem in error.problems.items():
            logger.warning("the move of %s can't be recovered: %s", name, problem)
        moves = {name: executor.journal.last(name) for name in error.problems}
        stuck = (replace(executor.result(move), error=error.problems[name]) for name, move in moves.items() if move)
        return error.results, tuple(stuck)


class _Migration:
    """The migration of all sessions: plans, moves, and tells people of both."""

    def __init__(self, planning: SessionPlanner, to: str, settings: Settings) -> None:
        self._planning, self._to, self._settings, self._logger = planning, to, settings, get_run_logger()
        self._waiting: Sequence[Decision] = ()
        self._notifier = Notifier(
            settings,
            planning.sessions,
            planning.database,
            _Differences(settings),
            planning.deadline,
            planning.keeps,
        )
        self.part = ROUNDS * _at_once(settings, planning.sessions.engine.at_once)

    def plan(self) -> Sequence[Decision]:
        planned = self._planning.plan([], self._to, begin=True)
        if not (pulled := self._planning.fetch(planned)):
            return planned
        self._logger.info("pulled %s", ", ".join(map(short, pulled)))
        return self._planning.plan([], self._to, begin=True)

    def move(self, number: int, decisions: Sequence[Decision]) -> tuple[Result, ...]:
        superseded = (lambda _: False) if self._to else self._planning.superseded
        budget = FailureBudget(decisions, self._settings.migration.failures, superseded)
        results = move_wave(number, decisions, self._settings, budget)
        _show(results)
        _alert(results, self._settings)
        return results

    def hear(self) -> None:
        """Let what owners have answered on their pages come into the database."""
        if answered := self._notifier.hear(self._waiting):
            self._logger.info("the owners of %s have answered", ", ".join(answered))

    def rest(self, decisions: Sequence[Decision], until: datetime | None) -> None:
        own = self._planning.of_refit(decisions)
        self._waiting = own
        if notified := self._notifier.tell(own):
            self._logger.info("told the owners of %s", ", ".join(notified))
        self.hear()
        self._report()
        if until:
            self._logger.info("waits until %s at most: %s", f"{until:%Y-%m-%d %H:%M:%S} UTC", _reasons(decisions))

    def _report(self) -> None:
        for news in self._planning.news():
            for failure in operator_alerts.send("A rollout has to be looked at", news, self._settings):
                self._logger.warning("%s", failure)
        fleet = self._planning.fleet()
        _show_fleet(fleet, History(self._planning.database))
        ask(questions(fleet))


def _reasons(decisions: Iterable[Decision]) -> str:
    """For what it is waited, in words."""
    waiting = [line.reason for line in decisions if line.action is not Action.skip]
    reasons = Counter(reason.text if reason else "its turn" for reason in waiting)
    return ", ".join(f"{number} × {reason}" for reason, number in reasons.most_common())


@contextmanager
def _alone(database: Engine) -> Iterator[bool]:
    """Whether no other run follows a migration of all sessions while this one does."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lease(database, "migration", wait=0))
        except LeaseTaken:
            yield False
            return
        yield True


class _Watch:
    """The machine's clock, and an eye on the database: a command is heard at once."""

    def __init__(self, database: Engine, hear: Callable[[], None] = lambda: None) -> None:
        """A clock; `hear` lets what people have answered on their pages come into the database."""
        self._history, self._wishes, self._hear = History(database), PreferenceStore(database), hear
        self._known = self._all()

    def now(self) -> datetime:
        return now()

    def wait(self, until: datetime) -> None:
        heard = time.monotonic()

        def is_over() -> bool:
            nonlocal heard
            if time.monotonic() - heard > HEAR_SECONDS:
                self._hear()
                heard = time.monotonic()
            return now() >= until or self._all() != self._known

        wait_until(is_over, pause=lambda _: min(POLL_SECONDS, max(0.0, (until - now()).total_seconds())))
        self._known = self._all()

    def _all(self) -> tuple[int, int]:
        return self._history.length(), self._wishes.length()


@flow(name="steer-migration", flow_run_name="{what} the migration")
def steer_migration(what: Literal["pause", "resume", "abort", "approve"], image: str = "") -> str:
    """Pause, resume or abort the rollout of an image, or approve the waves that it has behind it.

    Args:
        what: The action. Moves that have begun come to their end in any case.
        image: Digest, or its first twelve digits, or tag. Empty means the only rollout that goes on.
    """
    return steer(what, image, load_settings(), caller())


@flow(name="recover-migrations", flow_run_name="recover migrations")
def recover_migrations(held: str = "") -> tuple[Result, ...]:
    """Finish or undo every move that a crash interrupted.

    Args:
        held: Name of a session whose last move is held: try to end that, too.
    """
    settings = load_settings()
    executor = MoveExecutor.open(settings)
    reopened = reopen(executor, held) if held else None
    results: tuple[Result, ...] = (reopened,) if reopened else ()
    remove_killed(executor.sessions)
    problem: NotRecovered | None = None
    try:
        results += recover_all(executor)
    except NotRecovered as error:
        results, problem = results + error.results, error
    _show(results)
    _alert(results, settings)
    if problem:
        raise problem
    return results


class _Differences:
    """The differences between two images, in words; each pair is looked up once."""

    def __init__(self, settings: Settings) -> None:
        self._registry = Registry(settings)
        self._packages = cache(self._look_up)

    def __call__(self, old: str, new: str) -> str:
        return str(image_comparison.changes(self._packages(old), self._packages(new)))

    def _look_up(self, digest: str) -> Mapping[str, str]:
        return evidence.packages(self._registry, digest)


def _show_fleet(fleet: Fleet, history: History) -> None:
    """How the rollouts go, with a picture, and who is on what image."""
    markdown = chart.markdown(fleet, history.events(kinds=[Kind.move_ended]), now())
    create_markdown_artifact(markdown, key="rollouts", description="Rollouts of images")
    rows = [{name: str(value or "") for name, value in vars(line).items()} for line in fleet.sessions]
    create_table_artifact(
        as_cells(rows), key="fleet", description="Sessions with their images, those that are behind, and why"
    )


def about_held(results: Iterable[Result]) -> str:
    """The message about sessions that wait for a person; empty: there are none."""
    return "\n\n".join(f"{result.session}: {result.reason}" for result in results if result.state is State.held)


def _alert(results: Iterable[Result], settings: Settings) -> None:
    """Tell whoever looks after sessions at once, whatever becomes of the wave."""
    if markdown := about_held(results):
        for failure in operator_alerts.send("Sessions are held, and wait for you", markdown, settings):
            get_run_logger().warning("%s", failure)


def _show(results: Iterable[Result]) -> None:
    create_table_artifact(
        key="moves",
        description="Moves of sessions",
        table=as_cells(
            [
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
            ]
        ),
    )
