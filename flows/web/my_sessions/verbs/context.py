"""`VerbContext`: the settings, sessions and records that verbs work with; and the parts of a verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import BoundedSemaphore
from typing import Any

from pydantic import BaseModel, ConfigDict

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.web.authorizer.sharing import Sharing
from flows.web.my_sessions.actions import Actions
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.overview import Lookout
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.session_view import MySession, State
from flows.web.people.person_limits import Allowance
from flows.web.people.scopes import Scope

_COMPARED_AT_ONCE = 2
_UPLOADS_AT_ONCE, _COMPOSED_AT_ONCE = 4, 2


class VerbContext:
    """The objects that verbs work with."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = open_database(settings.database)
        self.allowance = Allowance(settings, self.database)
        self.lookout = Lookout(settings, self.database)
        self.actions = Actions(self.database, self.lookout.forget)
        # A comparison may read a home for minutes: more are refused meanwhile, so that threads are left for the rest.
        self.comparing = BoundedSemaphore(_COMPARED_AT_ONCE)
        # An upload is megabytes in memory, and to look at a recipe takes a copy of the catalog and a second.
        self.uploads, self.composing = BoundedSemaphore(_UPLOADS_AT_ONCE), BoundedSemaphore(_COMPOSED_AT_ONCE)

    @contextmanager
    def one_of(self, few: BoundedSemaphore) -> Iterator[None]:
        """Be one of the few who do something at once, inside the `with` block.

        Raises:
            Problem: others do.
        """
        if not few.acquire(blocking=False):
            raise Problem(Code.too_many, "Too many others do that just now.", hint="try again in a minute.")
        try:
            yield
        finally:
            few.release()

    @cached_property
    def sharing(self) -> Sharing:
        """The shares, which the Hub holds."""
        return Sharing.open(self.settings)

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


class Parameters(BaseModel):
    """The parameters of a verb: those that are named here, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(Parameters):
    """A verb without parameters."""


@dataclass(frozen=True)
class Verb:
    """One verb.

    Attributes:
        name: as the API and its clients call it.
        method: of HTTP.
        path: below the API; `{session}` stands for the name of a session.
        scope: that a token needs.
        what: its description, in a sentence.
        does: does it: for whom, the session's name (empty: none), the parameters.
        takes: the parameters: in the body of a POST, in the query of a GET.
        gives: the model of its answer.
        later: whether it only begins then, so that the answer is 202.
        inside: whether a session may do it with itself, by its own token.
        button: the text of its button on a page; empty: it has none.
        shown: the states of a session in which there is that button.
        fits: whether a session in such a state has that button.
        most: bytes that its parameters may have; 0: as those of others.
    """

    name: str
    method: str
    path: str
    scope: Scope
    what: str
    does: Callable[[VerbContext, Caller, str, Any], Any]
    takes: type[Parameters] = Nothing
    gives: Any = MySession
    later: bool = False
    inside: bool = False
    button: str = ""
    shown: frozenset[State] = frozenset()
    fits: Callable[[MySession], bool] = lambda session: True
    most: int = 0


ONE = "/sessions/{session}"
UP, DOWN = frozenset({State.running}), frozenset({State.stopped, State.down})
EVERY = frozenset(State)
