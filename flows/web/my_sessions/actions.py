"""Actions that take their time: one action for a session at once, a few side by side, and what came of them for a
while."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Lock

from sqlalchemy import Engine

from flows.core.database import now
from flows.core.errors import RefitError
from flows.sessions import wishes
from flows.web.my_sessions import problems
from flows.web.my_sessions.problems import Code, Problem
from flows.web.people.action_records import FAILED, KEPT, ActionRecords, Service
from flows.web.people.doing import Doing

logger = logging.getLogger("refit.my-sessions")

AT_ONCE = 4
MOST_WAITING = 64


class Actions:
    """The actions of this process, which are in the database as well: what an earlier one left behind is told."""

    def __init__(self, database: Engine, after: Callable[[], None] = lambda: None) -> None:
        """Actions that an earlier process had begun were interrupted; `after` is called when an action has ended."""
        self._pool, self._lock, self._after = ThreadPoolExecutor(AT_ONCE, "action"), Lock(), after
        self._records = ActionRecords(database, Service.page)
        self._records.end_interrupted()
        self._doing = dict(self._records.of_sessions())

    def begin(self, session: str, verb: str, person: str, work: Callable[[], str]) -> Doing:
        """Let an action begin as soon as there is room; it says what came of it, in words, or fails.

        Args:
            session: with which something is done; nothing else is done with it until that ends.
            verb: the action, as the API calls it.
            person: the person who asked for it; the history has their name.
            work: the action.

        Raises:
            Problem: something is done with this session already, or there are too many actions.
        """
        with self._lock:
            self._doing = {
                name: action for name, action in self._doing.items() if not action.ended or action.ended > now() - KEPT
            }
            going = [name for name, action in self._doing.items() if not action.ended]
            if session in going:
                raise Problem(
                    Code.busy,
                    f"Another action for {session!r} has not ended: {self._doing[session].verb}.",
                    hint="try again when it has.",
                )
            if len(going) >= MOST_WAITING:
                raise Problem(Code.too_many, "Too many actions wait.", hint="try again in a minute.")
            begun = self._doing[session] = Doing(verb, person, now())
        try:
            self._records.begin(session, begun)
        except BaseException:
            with self._lock:
                del self._doing[session]
            raise
        self._pool.submit(self._carry_out, session, begun, work)
        return begun

    def of(self, session: str) -> Doing | None:
        """The action that was asked for last, if that is not long ago."""
        with self._lock:
            return self._doing.get(session)

    def all(self) -> dict[str, Doing]:
        """Session → what was asked for last."""
        with self._lock:
            return dict(self._doing)

    def close(self) -> None:
        """Begin nothing more; actions that have begun come to their end."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _carry_out(self, session: str, begun: Doing, work: Callable[[], str]) -> None:
        ended = replace(begun, ended=now(), problem=FAILED)
        try:
            with wishes.acting_as(begun.by):
                note = work()
            ended = replace(begun, ended=now(), note=note)
        except RefitError as error:
            problem = problems.of(error)
            logger.warning("%s of %s failed: %s", begun.verb, session, error)
            words = " ".join(filter(None, (problem.what, problem.why)))
            ended = replace(begun, ended=now(), problem=words, hint=problem.hint)
        except Exception:
            logger.exception("%s of %s failed", begun.verb, session)
        finally:
            with suppress(Exception):
                self._after()
            with suppress(Exception):
                self._records.end(session, ended)
            with self._lock:
                self._doing[session] = ended
