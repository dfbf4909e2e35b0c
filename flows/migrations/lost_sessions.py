"""Sessions that ought to run and whose containers are gone: each is started again in a thread of its own.

One that ends again and again takes minutes for each try. It keeps nobody from being told of a drain, nor another
session from coming back, and is tried less and less often.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta

from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.leases import held
from flows.core.settings import Settings
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.start_sessions import bring

logger = logging.getLogger("refit.migrations")

# Seconds for which a session is left alone that was just tried; twice as long after each failure, up to the longest.
_REST_SECONDS, _LONGEST_REST_SECONDS = 60.0, 3600.0
_MOST_DOUBLINGS = 10


def rest(failures: int) -> timedelta:
    """How long a session is left alone that couldn't be started so many times, one after another. Pure."""
    doubled = _REST_SECONDS * 2 ** min(max(failures - 1, 0), _MOST_DOUBLINGS)
    return timedelta(seconds=min(doubled, _LONGEST_REST_SECONDS))


class LostSessions:
    """Brings sessions back; one thread calls its methods."""

    def __init__(self, settings: Settings, executor: MoveExecutor) -> None:
        """Nothing is asked of the engine yet."""
        self._settings, self._executor = settings, executor
        self._sessions, self._journal = executor.sessions, executor.journal
        self._threads = ThreadPoolExecutor(self._sessions.engine.at_once, "lost-sessions")
        self._coming: dict[str, Future[None]] = {}
        self._rests: dict[str, datetime] = {}
        self._failures: dict[str, int] = {}

    def bring_back(self) -> None:
        """Begin to start those that may be started, and wait for none.

        After a move that couldn't go back, the home may be restored in part: a person looks at it first.

        Raises:
            RefitError: the engine or the database doesn't answer.
        """
        self._forget_ended()
        if lost := self._sessions.machines.lost() - {*self._coming}:
            due = {status.session.name for status in self._sessions.all() if status.should_run} & lost
            for name in sorted(filter(self._may, due)):
                self._coming[name] = self._threads.submit(self._bring, name)

    def wait(self) -> None:
        """Wait for the end of all tries that have begun."""
        wait(self._coming.values())

    def _forget_ended(self) -> None:
        ended = {name: coming for name, coming in self._coming.items() if coming.done()}
        for name, coming in ended.items():
            del self._coming[name]
            if error := coming.exception():
                logger.error("the start of %s ended by a mistake of Refit's", name, exc_info=error)

    def _may(self, name: str) -> bool:
        """Whether nobody else acts on a session, it wasn't tried a moment ago, and a person needn't look at it."""
        if self._rests.get(name, now()) > now() or f"session {name}" in held(self._journal.database, f"session {name}"):
            return False
        return (last := self._journal.last(name)) is None or last.state is not State.held

    def _bring(self, name: str) -> None:
        failures = self._failures.get(name, 0) + 1
        self._failures[name], self._rests[name] = failures, now() + rest(failures)
        try:
            problem = bring(self._settings, self._executor, [name])[name]
        except RefitError as error:
            problem = str(error)
        self._failures[name] = failures if problem else 0
        self._rests[name] = now() + rest(self._failures[name])
        logger.warning("%s has lost its machine, and is %s", name, f"not back: {problem}" if problem else "back")
