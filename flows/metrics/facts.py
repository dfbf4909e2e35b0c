"""The facts behind the metrics: taken from the database, the engine, the registry and the Prefect server, whenever it
is asked for.

Nothing is kept between two looks, so nothing can go wrong between them. Sources that don't answer are left out, and
`services` says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Engine, func, or_, select
from sqlalchemy.orm import Session as Transaction

from flows import services
from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.ledger import Ledger
from flows.metrics import runs
from flows.metrics.runs import Runs
from flows.migrations.journal import Journal, MoveRow, StepRow
from flows.migrations.move import Phase
from flows.migrations.move_steps import StepName
from flows.migrations.notifications.notice import first_told
from flows.migrations.orphaned_moves import interrupted
from flows.migrations.planning.move_terms import terms
from flows.migrations.planning.policies import policies
from flows.migrations.planning.rollout import Candidate, ImageKey, PlanInput
from flows.migrations.planning.rollout_state import RolloutState
from flows.migrations.rollouts.foreign_builds import NOBODYS, ForeignBuilds
from flows.migrations.rollouts.store import Rollouts
from flows.migrations.rollouts.targets import targets
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.homes.pool import Pool, Room
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.overview import Status
from flows.sessions.preferences import UpdatePreferences
from flows.sessions.wishes import PreferenceStore

logger = logging.getLogger("refit.metrics")

_GIVEN_UP = (Phase.failed, Phase.skipped, Phase.deferred)


@dataclass(frozen=True)
class SessionFact:
    """A session.

    Attributes:
        profile, release, image: its profile, release and image, the image by its digest.
        state: the state of its container; `missing`: it has none.
        should_run: it ought to run.
        behind: there is a newer image for it; none: nobody knows.
        overdue: its deadline has passed.
    """

    profile: str
    release: str
    image: str
    state: str
    should_run: bool
    behind: bool | None = None
    overdue: bool = False


@dataclass(frozen=True)
class Facts:
    """All that is counted.

    Attributes:
        sessions: all of this machine.
        rollouts: all that go on or rest, and those that are over.
        moves: how a move stands and the step at which it was given up (empty: it was not) → how many.
        interrupted: how many moves have not ended, and nobody works on them.
        pool: size and free space of the pool of homes; none: there is none, or it can't be had.
        downtimes: seconds for which each session that was stopped was away.
        stages: `built`, `grafted` or `reused` → how many stages of all runs.
        services: name → whether it answers.
        runs: counted by the Prefect server.
    """

    sessions: Sequence[SessionFact] = ()
    rollouts: Sequence[RolloutState] = ()
    moves: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    interrupted: int = 0
    pool: Room | None = None
    downtimes: Sequence[float] = ()
    stages: Mapping[str, int] = field(default_factory=dict)
    services: Mapping[str, bool] = field(default_factory=dict)
    runs: Runs = field(default_factory=Runs)


def look(settings: Settings) -> Facts:
    """All that is counted, as it is now.

    Raises:
        RefitError: the database can't be reached.
    """
    database = open_database(settings.database)
    return Facts(
        sessions=_sessions(settings, database),
        rollouts=tuple(Rollouts(database).all().values()),
        moves=moves(database),
        interrupted=len(interrupted(Journal(database))),
        pool=_pool(settings),
        downtimes=downtimes(database),
        stages=Ledger(database).counts(),
        services={state.name: state.answering for state in services.status(settings)},
        runs=runs.look(settings),
    )


def moves(database: Engine) -> dict[tuple[str, ...], int]:
    """How a move stands, and the step at which it was given up → how many there are."""
    first = select(StepRow.move, func.min(StepRow.number).label("number"))
    first = first.where(StepRow.phase.in_(_GIVEN_UP)).group_by(StepRow.move)
    given_up = first.subquery()
    with Transaction(database) as transaction:
        rows = transaction.execute(
            select(MoveRow.state, StepRow.step, func.count())
            .outerjoin(given_up, given_up.c.move == MoveRow.id)
            .outerjoin(StepRow, StepRow.number == given_up.c.number)
            .group_by(MoveRow.state, StepRow.step)
        )
        return {(state, step or ""): number for state, step, number in rows}


def downtimes(database: Engine) -> tuple[float, ...]:
    """Seconds from the request to stop until the IDE answered again, of every move in which that happened."""
    stopped = (StepRow.step == StepName.stop) & (StepRow.phase == Phase.intent)
    back = StepRow.step.in_((StepName.answer, StepName.revive)) & (StepRow.phase == Phase.done)
    chosen = select(StepRow.move, StepRow.step, func.min(StepRow.at)).where(or_(stopped, back))
    moments: dict[str, dict[str, datetime]] = {}
    with Transaction(database) as transaction:
        for move, step, at in transaction.execute(chosen.group_by(StepRow.move, StepRow.step)):
            moments.setdefault(move, {})[step] = at
    return tuple(
        (ready - at[StepName.stop]).total_seconds()
        for at in moments.values()
        if StepName.stop in at and (ready := at.get(StepName.revive) or at.get(StepName.answer))
    )


def _pool(settings: Settings) -> Room | None:
    try:
        pool = Pool(settings)
        return pool.room() if pool.ready() else None
    except RefitError as error:
        logger.warning("How full the pool of homes is can't be told: %s", error)
        return None


def _sessions(settings: Settings, database: Engine) -> tuple[SessionFact, ...]:
    statuses = Sessions.open(settings, database).all()
    newest = _newest(settings, [status.session for status in statuses])
    overdue = _overdue(settings, database, statuses, newest)
    return tuple(_fact(status, newest, overdue) for status in statuses)


def _fact(status: Status, newest: Mapping[ImageKey, str] | None, overdue: frozenset[str]) -> SessionFact:
    session, state = status.session, status.running
    behind = None if newest is None else newest.get(_key(session), session.image) != session.image
    words = (session.profile, session.release, session.image, str(state) if state else "missing")
    return SessionFact(*words, status.should_run, behind, session.name in overdue)


def _newest(settings: Settings, sessions: Iterable[Session]) -> Mapping[ImageKey, str] | None:
    """Profile and release → the newest tested image; none: the registry doesn't say."""
    try:
        return targets(sessions, "", settings)
    except RefitError as error:
        logger.warning("The sessions that are behind can't be counted: %s", error)
        return None


def _overdue(
    settings: Settings, database: Engine, statuses: Iterable[Status], newest: Mapping[ImageKey, str] | None
) -> frozenset[str]:
    """The names of the sessions whose deadline has passed."""
    behind = [s.session for s in statuses if newest and newest.get(_key(s.session), s.session.image) != s.session.image]
    notified = first_told(History(database).events(kinds=(Kind.noticed, Kind.withdrawn)), Kind.noticed)
    if not newest or not behind or not notified:  # without a notice there is no deadline
        return frozenset()
    wishes, rules = PreferenceStore(database).all(), policies(settings)
    rollout = PlanInput(now(), newest, settings.migration, settings.idle_state_hours)
    overdue = dict[str, Session]()
    for session in behind:
        candidate = Candidate(
            session,
            running=True,
            policy=rules.get(_key(session), settings.migration.sessions),
            wish=wishes.get(session.name, UpdatePreferences()),
            notified=notified.get((session.name, session.image)),
        )
        deadline = terms(candidate, newest[_key(session)], rollout).deadline
        if deadline is not None and deadline < rollout.now.timestamp():
            overdue[session.name] = session
    # No deadline moves a session onto an image by another person's own recipe.
    foreign = ForeignBuilds(settings, database).judge(overdue.values(), newest)
    return frozenset(name for name in overdue if foreign.get(name, NOBODYS) == NOBODYS)


def _key(session: Session) -> ImageKey:
    return session.profile, session.release
