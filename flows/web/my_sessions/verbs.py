"""The table of all verbs: what a person, or a program of theirs, can do here.

From it come the routes of the API, its OpenAPI description and the forms of the pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.migrations.start_sessions import start_session
from flows.web.hub.scopes import Scope
from flows.web.my_sessions.actions import Actions
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.look import Lookout
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.told import MySession, State


class Desk:
    """The objects that verbs work with."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = open_database(settings.database)
        self.lookout = Lookout(settings, self.database)
        self.actions = Actions(self.lookout.forget)

    def one(self, caller: Caller, name: str) -> MySession:
        """A session that somebody may use.

        Raises:
            Problem: there is none, or not for them.
        """
        return self.lookout.one(caller.person, name, self.actions.of(name))

    def mine(self, caller: Caller, name: str) -> MySession:
        """A session that belongs to somebody.

        Raises:
            Problem: there is none, or it isn't theirs.
        """
        session = self.one(caller, name)
        if not session.is_mine:
            raise Problem(Code.not_yours, f"The session {name!r} belongs to {session.owner}, who alone may do that.")
        return session

    def act(self, caller: Caller, name: str, verb: str, work: Callable[[], str]) -> MySession:
        """Let an action of an owner begin; returns the session as it is then."""
        self.actions.begin(name, verb, caller.person, work)
        return self.one(caller, name)


class Nothing(BaseModel):
    """A verb without parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Verb:
    """One verb.

    Attributes:
        name: as the API and its clients call it.
        method: of HTTP.
        path: below the API; `{session}` stands for the name of a session.
        scope: that a token needs.
        what: what it does, in a sentence.
        does: does it: for whom, the session's name (empty: none), the parameters.
        takes: the parameters: in the body of a POST, in the query of a GET.
        gives: what the answer has.
        later: whether it only begins then, so that the answer is 202.
        button: what a page calls it; empty: it has no button there.
        shown: the states of a session in which there is that button.
        fits: whether a session in such a state has that button.
    """

    name: str
    method: str
    path: str
    scope: Scope
    what: str
    does: Callable[[Desk, Caller, str, Any], Any]
    takes: type[BaseModel] = Nothing
    gives: Any = MySession
    later: bool = False
    button: str = ""
    shown: frozenset[State] = frozenset()
    fits: Callable[[MySession], bool] = lambda session: True


def _list(desk: Desk, caller: Caller, _: str, __: Nothing) -> tuple[MySession, ...]:
    return desk.lookout.all(desk.lookout.usable(caller.person), desk.actions.all())


def _show(desk: Desk, caller: Caller, name: str, _: Nothing) -> MySession:
    return desk.one(caller, name)


def _start(desk: Desk, caller: Caller, name: str, _: Nothing) -> MySession:
    desk.mine(caller, name)

    def work() -> str:
        _, result = start_session(desk.settings, name)
        return "It runs on its new image." if result and result.moved else "It runs."

    return desk.act(caller, name, "start", work)


def _stop(desk: Desk, caller: Caller, name: str, _: Nothing) -> MySession:
    desk.mine(caller, name)

    def work() -> str:
        desk.lookout.sessions.stop(name)
        return "It is stopped. Its home stays as it is."

    return desk.act(caller, name, "stop", work)


_ONE = "/sessions/{session}"

MANY = tuple[MySession, ...]

VERBS: tuple[Verb, ...] = (
    Verb(
        "list",
        "GET",
        "/sessions",
        Scope.read,
        "List the sessions that you may use.",
        _list,
        gives=MANY,
    ),
    Verb("show", "GET", _ONE, Scope.read, "Show one session.", _show),
    Verb(
        "start",
        "POST",
        f"{_ONE}/start",
        Scope.sessions,
        "Start a session that is stopped; one that waits for a new image gets it before.",
        _start,
        later=True,
        button="Start",
        shown=frozenset({State.stopped, State.down}),
    ),
    Verb(
        "stop",
        "POST",
        f"{_ONE}/stop",
        Scope.sessions,
        "Stop a session. Its programs end; its home stays as it is.",
        _stop,
        later=True,
        button="Stop",
        shown=frozenset({State.running}),
    ),
)
BY_NAME = {verb.name: verb for verb in VERBS}
