"""Drains: sessions leave machines that go down, with notices and a deadline. Sessions of dead machines come back.

A drain closes a node first (`kubectl cordon`). That is seen here, and each session of the node moves onto another one
by the same steps as onto another image. One whose machine is dead is started elsewhere when the engine says that its
containers can't write any more, never before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta

from flows.core import operator_alerts
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.leases import held
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.migrations.executor import MoveExecutor
from flows.migrations.lost_sessions import LostSessions
from flows.migrations.move import Move
from flows.migrations.move_steps import FINAL, State
from flows.migrations.planning import drain_plan
from flows.migrations.planning.drain_plan import MACHINE, DrainedSession
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.migrations.results import Result
from flows.sessions.activity.probes import look_at
from flows.sessions.activity.seen import Seen
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.ide import terminal_messages
from flows.sessions.model import Running, Session
from flows.sessions.overview import Status
from flows.sessions.wishes import PreferenceStore

logger = logging.getLogger("refit.migrations")

BY = "a machine that goes down"
# Seconds for which a session is left alone that couldn't be moved.
_REST_SECONDS = 60.0


class MachineDrains:
    """Looks again and again which sessions have to leave their machines, or have lost them.

    Attributes:
        lost: those that have lost their machines, which come back in threads of their own.
    """

    def __init__(self, settings: Settings) -> None:
        """Nothing is asked of the engine yet."""
        self._settings, self._minutes = settings, settings.kubernetes.drain_minutes
        self._executor = MoveExecutor.open(settings)
        self._sessions, self._journal = self._executor.sessions, self._executor.journal
        self._history = History(self._journal.database)
        self.lost = LostSessions(settings, self._executor)
        self._rests: dict[str, datetime] = {}
        self._refused = False

    def run_once(self) -> tuple[Result, ...]:
        """Begin to bring sessions back, tell owners, and move those that may move; the results of these moves.

        Raises:
            RefitError: the engine, the registry or the database doesn't answer.
        """
        self.lost.bring_back()
        self._give_gpus_back()
        if not self._minutes:
            return ()
        self._hold_back_evictions()
        names = self._sessions.machines.leaving()
        statuses = {status.session.name: status for status in self._sessions.all() if status.session.name in names}
        since = self._tell({name: machine for name, machine in names.items() if name in statuses})
        lines = [
            drain_plan.decide(session, now(), self._minutes) for session in self._drained_sessions(statuses, since)
        ]
        for line in lines:
            if line.reason is Reason.stopped:
                self._vacate(line.session)
        going = [line for line in lines if line.action is Action.migrate]
        return tuple(filter(None, at_once(self._move, going, self._sessions.engine.at_once)))

    def _give_gpus_back(self) -> None:
        """Let others have the GPUs of sessions that are stopped: the run that stopped them may have been killed."""
        for name in sorted(self._sessions.machines.idle_gpus()):
            if not (record := self._sessions.store.find(name)) or record[1]:  # it starts, or `refit up` starts it again
                continue
            with suppress(RefitError), self._sessions.alone(name, wait=0):
                self._sessions.settle_gpus(name)

    def _may(self, name: str) -> bool:
        """Whether nobody else acts on a session, and it wasn't tried a moment ago."""
        at_work = held(self._journal.database, f"session {name}")
        return f"session {name}" not in at_work and self._rests.get(name, now()) <= now()

    def _hold_back_evictions(self) -> None:
        if self._refused:
            return
        try:
            self._sessions.machines.hold_back_evictions()
        except RefitError as error:
            self._refused = True
            logger.warning("drains may evict sessions before they have moved: %s", error)

    def _tell(self, names: Mapping[str, str]) -> dict[str, datetime]:
        """Write down who has to leave since when, and tell their owners; session → since when."""
        before = drain_plan.still_leaving(self._history.events(kinds=(Kind.leaves,)))
        for name, machine in drain_plan.changed(names, before).items():
            what = f"it has to leave {machine}" if machine else f"it needn't leave {before[name][0]} any more"
            self._history.add(Kind.leaves, session=name, by=BY, what=what, data={MACHINE: machine})
            deadline = now() + timedelta(minutes=self._minutes)
            if not (record := self._sessions.store.find(name)):
                continue
            if machine:
                self._notify(record[0], *drain_plan.notice(name, machine, deadline))
            elif (last := self._journal.last(name)) is None or last.created < before[name][1]:
                self._notify(record[0], *drain_plan.called_off_notice(name, before[name][0]))
        after = drain_plan.still_leaving(self._history.events(kinds=(Kind.leaves,))) if names else {}
        return {name: since for name, (_, since) in after.items()}

    def _notify(self, session: Session, title: str, text: str) -> None:
        """Tell an owner by all ways that there are; one who can't be told keeps no machine from going down."""
        with suppress(RefitError):
            terminal_messages.write_to_all(self._sessions.engine, session, text)
        with suppress(RefitError):
            if pages := self._sessions.pages(session):
                pages.leave_notice("leaves", title, text)
        owner = PreferenceStore(self._journal.database).of(session.name).owner
        addresses = operator_alerts.addresses_of(session.name, self._settings, owner)
        for failure in operator_alerts.send_to(addresses, title, text, "notify_owners"):
            logger.warning("%s", failure)

    def _drained_sessions(self, statuses: Mapping[str, Status], since: Mapping[str, datetime]) -> list[DrainedSession]:
        running = [status.session for status in statuses.values() if status.running is Running.running]
        seen = {activity.session: activity for activity in look_at(self._settings, self._sessions.engine, running)}
        return [
            self._drained_session(status, since[name], seen.get(name))
            for name, status in sorted(statuses.items())
            if name in since
        ]

    def _drained_session(self, status: Status, since: datetime, seen: Seen | None) -> DrainedSession:
        name = status.session.name
        last = self._journal.last(name)
        return DrainedSession(
            status.session,
            status.running is Running.running,
            since,
            seen,
            _left_behind(last, at_work=not self._may(name)),
            self._rests.get(name),
        )

    def _vacate(self, name: str) -> None:
        with suppress(RefitError), self._sessions.alone(name, wait=0):
            self._sessions.machines.vacate(name)

    def _move(self, line: Decision) -> Result | None:
        """Move one session off; that it can't be moved just now keeps no other from it."""
        try:
            result = self._executor.carry_out(line, by=BY)
        except RefitError as error:
            self._rests[line.session] = now() + timedelta(seconds=_REST_SECONDS)
            logger.warning("%s can't leave its machine just now: %s", line.session, error)
            return None
        if not result.moved:
            self._rests[line.session] = now() + timedelta(seconds=_REST_SECONDS)
        logger.warning("%s leaves its machine: %s %s", line.session, result.state, result.reason)
        return result


def _left_behind(last: Move | None, *, at_work: bool) -> Reason | None:
    """The remains of a session's last move that keep it from the next; none: there are none. Pure."""
    if last is None or last.state in FINAL - {State.held}:
        return None
    if last.state is State.held:
        return Reason.held
    return Reason.moving if at_work else Reason.unfinished
