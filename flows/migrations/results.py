"""Results of steps and moves: plain data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flows.core.errors import RefitError
from flows.migrations.move_steps import Code, State


@dataclass(frozen=True)
class Outcome:
    """The entry of a step in the journal: a note for people; code and data for the steps after it, see `Entry`."""

    note: str = ""
    code: Code | None = None
    data: str = ""


NOTHING = Outcome()


class Unproven(RefitError):
    """The session runs on its new image, but not as it should."""


class Deferred(RefitError):
    """A session that isn't to be stopped just now: somebody works in it, or its owner wants it otherwise."""


@dataclass(frozen=True)
class Result:
    """The result for one session.

    Attributes:
        session: its name.
        old: digest of the image that it had.
        new: digest of the image that it was to get.
        packages: the changes by that, in words.
        downtime: seconds from the request to stop until its IDE answered again; none if it was not stopped.
        state: how its move ended; `skipped` also where there was none.
        reason: why it did not move; empty if it did.
        error: why its move wasn't tried; empty: it was.
        damaged: it could not be undone, or the home isn't as it was.
        put_off: whether it is tried again, for its failure says nothing of the new image.
    """

    session: str
    old: str
    new: str
    packages: str
    downtime: float | None
    state: State
    reason: str
    error: str = ""
    damaged: bool = False
    put_off: bool = False

    @property
    def moved(self) -> bool:
        """Whether it runs on the new image now."""
        return self.state is State.cleaned

    @property
    def failed(self) -> bool:
        """Whether somebody should look: it was rolled back, is held, or could not be tried or moved just then."""
        return self.state in (State.rolled_back, State.held) or bool(self.error) or self.put_off


class NotRecovered(RefitError):
    """Moves that could not be recovered just now: `problems` by session; `results` of those that could."""

    def __init__(self, problems: Mapping[str, str], results: tuple[Result, ...] = ()) -> None:
        self.problems, self.results = dict(problems), results
        why = "\n".join(f"{name}: {problem}" for name, problem in self.problems.items())
        super().__init__(
            "Not every interrupted move could be recovered.", why=why, hint="try again: `refit migrate recover`."
        )
