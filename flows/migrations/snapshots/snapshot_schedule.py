"""The schedule of snapshots, and their end: those that are due are taken, and those that nobody needs any more go.

Sessions on which somebody acts are left for the next time.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.leases import LeaseTaken
from flows.core.settings import Settings
from flows.core.settings.policy import SnapshotPolicy
from flows.migrations.journal import Journal
from flows.migrations.move_steps import FINAL, State
from flows.sessions.homes.pool import Pool
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from flows.sessions.snapshots import take as taking
from flows.sessions.snapshots.model import Kind, Snapshot
from flows.sessions.snapshots.records import SnapshotRecords
from flows.sessions.snapshots.retention import first_to_go, is_due, outlived
from flows.sessions.snapshots.retention_overrides import RulesStore

logger = logging.getLogger("refit.migrations")
SCHEDULE = "the schedule"


def mind(settings: Settings, sessions: Sessions) -> None:
    """Take the snapshots that are due, and remove those that have outlived.

    Raises:
        RefitError: engine or database doesn't answer.
    """
    full, records = is_full(settings), SnapshotRecords(sessions.store.database).all()
    by_session: dict[str, list[Snapshot]] = {}
    for record in records:
        by_session.setdefault(record.session, []).append(record)
    policies = RulesStore(sessions.store.database).policies(settings.snapshots)
    for session in sessions.store.sessions():
        policy, snapshots = policies(session.name), by_session.get(session.name, ())
        due = not full and is_due(snapshots, policy, now())
        if due or outlived(snapshots, policy, settings.migration.keep_hours, now()):
            with suppress(LeaseTaken), sessions.alone(session.name, wait=0):
                _mind(settings, sessions, session.name, policy, due=due)
    if full:
        _make_room(sessions)


def is_full(settings: Settings) -> bool:
    """Whether the pool is fuller than it may be with snapshots that nobody has named."""
    pool = Pool(settings)
    if not pool.ready():
        return False
    room = pool.room()
    return (room.size - room.free) * 100 > settings.snapshots.pool_percent * room.size


def _mind(settings: Settings, sessions: Sessions, name: str, policy: SnapshotPolicy, *, due: bool) -> None:
    record, records = sessions.store.find(name), SnapshotRecords(sessions.store.database)
    if record is None or not _is_at_rest(sessions, name):
        return
    if due:
        _take(sessions, record[0], records.all(name))
    for snapshot in outlived(records.all(name), policy, settings.migration.keep_hours, now()):
        taking.remove(sessions, snapshot, SCHEDULE)


def _is_at_rest(sessions: Sessions, name: str) -> bool:
    """Whether no move of a session is under way, or held: the person who looks at it may need each snapshot."""
    last = Journal(sessions.store.database).last(name)
    return last is None or last.state in FINAL - {State.held}


def _take(sessions: Sessions, session: Session, earlier: tuple[Snapshot, ...]) -> None:
    """Take one of a session that runs and has changed; outside a pool the schedule copies nothing."""
    if sessions.running(session) is not Running.running:
        return
    try:
        if sessions.homes.snapshot_cost(session):
            return
        latest = max(earlier, key=lambda snapshot: snapshot.at, default=None)
        if latest and sessions.homes.touched(session, latest.id) == ():
            return
        taking.take(sessions, session, Kind.scheduled, SCHEDULE)
    except RefitError as error:
        logger.warning("no snapshot of %s was taken: %s", session.name, error)


def _make_room(sessions: Sessions) -> None:
    """Remove one snapshot, the oldest that nobody has named: the room comes back a while later, and then it is seen."""
    records = SnapshotRecords(sessions.store.database)
    if (oldest := first_to_go(records.all())) is None:
        logger.warning("the pool is full, and no snapshot is left that may go")
        return
    with suppress(LeaseTaken), sessions.alone(oldest.session, wait=0):
        if _is_at_rest(sessions, oldest.session):
            taking.remove(sessions, oldest, SCHEDULE)
            logger.warning("the pool is full: the snapshot %s of %s was removed", oldest.name, oldest.session)
