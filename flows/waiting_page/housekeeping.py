"""Housekeeping beside the waiting page: routes of a new gateway, moves whose runs were killed, snapshots, drains."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from flows.core.database import now
from flows.core.lazily import lazily
from flows.core.waiting import forever
from flows.gateway import routes
from flows.host.sockets import remote_ends
from flows.migrations.orphaned_moves import PATIENCE, IngressReopener, end_abandoned
from flows.migrations.snapshots import snapshot_schedule
from flows.migrations.steps import previous_containers
from flows.waiting_page.app import WaitingPage

# To import the steps of moves takes as long as all else, and this service carries hardly any out.
with lazily(globals()):
    from flows.migrations.drains import MachineDrains
    from flows.migrations.executor import MoveExecutor

logger = logging.getLogger("refit.waiting-page")

LONGEST_PAUSE_SECONDS = 60.0


class Housekeeping:
    """The tasks that somebody has to do while no command and no flow runs."""

    def __init__(self, waiting_page: WaitingPage) -> None:
        """Nothing is done yet."""
        self._settings, self._look_for = waiting_page.settings, waiting_page.look_for
        self._sessions, self._journal = waiting_page.sessions, waiting_page.journal
        self._ingress, self._begun = IngressReopener(self._sessions, self._journal), now()
        self._drains: MachineDrains | None = None

    def start(self) -> None:
        """Repeat each task for as long as this process lives; none of them waits for another."""
        seconds_between: dict[Callable[[], None], float] = {
            self.restore_routes: 2.0,
            self.end_abandoned_moves: 2.0,
            self.follow_drains: 5.0,
            self.take_snapshots: 60.0,
            self.remove_previous_containers: 600.0,
        }
        for task, seconds in seconds_between.items():
            failed = partial(_log_failure, task.__name__.replace("_", " "))
            repeat = partial(forever, task, failed, pause=seconds, longest=LONGEST_PAUSE_SECONDS)
            threading.Thread(target=repeat, daemon=True).start()

    def restore_routes(self) -> None:
        """Tell a gateway where all sessions are if it has begun anew, and of those that died."""
        table = self._sessions.gateway.table()
        if table is not None and routes.COMPLETE not in table:
            self._sessions.tell_gateway()
        elif table is not None:
            self._sessions.gateway.add_fixed_routes(table)
        for name in knocked_at(table or {}):
            self._look_for(name)

    def end_abandoned_moves(self) -> None:
        """See to the sessions that a run which was killed has left closed, or away; `refit up` does so itself first."""
        if now() - self._begun < PATIENCE:
            return
        for name in self._ingress.open(now()):
            logger.warning("%s is open again: the run that looked at it a last time was killed", name)
        for result in end_abandoned(self._journal, lambda: MoveExecutor.open(self._settings), now()):
            logger.warning("the move of %s, whose run was killed, has ended: %s", result.session, result.state)

    def remove_previous_containers(self) -> None:
        """Remove the containers that sessions had before they moved, when their time is over."""
        previous_containers.clear(self._sessions, self._journal, self._settings.migration.keep_hours)

    def take_snapshots(self) -> None:
        """Take the snapshots of sessions that are due, and remove those whose time is over."""
        snapshot_schedule.mind(self._settings, self._sessions)

    def follow_drains(self) -> None:
        """Move sessions off machines that are to go down, and bring those back that have lost theirs."""
        if self._settings.in_cluster:
            self._drains = self._drains or MachineDrains(self._settings)
            self._drains.run_once()


def knocked_at(table: routes.Table) -> tuple[str, ...]:
    """The sessions to which the gateway wants to connect just now: with one that died, nobody says that it did."""
    sessions = {name: target for path, target in table.items() if (name := routes.session(path))}
    if not sessions:
        return ()  # to list all connections takes the kernel some 10 ms
    places = {f"http://{end.address}:{end.port}" for end in remote_ends() if end.waits}
    return tuple(name for name, target in sessions.items() if target in places)


def _log_failure(task: str, error: Exception) -> None:
    logger.error("housekeeping failed and is tried again: %s", task, exc_info=error)
