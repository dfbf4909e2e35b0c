"""One program in a session that answers several questions in turn: each program there is a call of the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ValidationError

from flows.core.errors import RefitError
from flows.core.programs.command import FOREIGN_OUTPUT, CommandTimeout, ProgramFailed
from flows.core.threads import within
from flows.sessions.activity import answer_questions
from flows.sessions.activity.evidence import Look
from flows.sessions.activity.probes import LOOKS, Inside, ProbeSpec, asked, read_look, see
from flows.sessions.activity.verdict import PROBE
from flows.sessions.model import Session

_ANSWERS = Path(answer_questions.__file__)
# Seconds from its first question to the answer of its last.
_LIMIT = 120.0
# Seconds until it is ready for the first.
_START_SECONDS = 30.0
# Seconds more than a program may take, which the one that answers ends itself.
_LATE = 5.0
_TAIL = 2000


class Programs(Protocol):
    """Where programs run beside a session; see `Engine.execute`."""

    def execute(
        self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = FOREIGN_OUTPUT
    ) -> str:
        """Run a program beside a running container; returns its standard output."""


class _Within(Programs, Inside, Protocol):
    """Both ways to run programs in a session."""


class _Ended(BaseModel):
    """The end of a program; `code` is none where it took too long."""

    code: int | None
    said: str
    why: str


class Visit(Programs):
    """Questions to a session that runs: a look, or what a program prints. Where none can begin, each is asked alone."""

    def __init__(self, engine: _Within, session: Session, ask: Callable[[str], str] | None) -> None:
        self._engine, self._session, self._ask = engine, session, ask

    def look(self, manner: ProbeSpec) -> Look:
        """Look at the session.

        Raises:
            RefitError: nothing could be seen.
        """
        if self._ask is None:
            return see(self._engine, self._session, manner)
        return read_look(self._session, self._answer(asked(self._session, manner), manner.limit))

    def _answer(self, question: str, limit: float) -> str:
        """The answer of the program within so many seconds.

        One that has ended, is late, or was ended or held by another program of the session is asked no more.

        Raises:
            RefitError: there is none.
        """
        assert self._ask
        try:
            return _within(limit, self._ask, question)
        except RefitError:
            self._ask = None
            raise

    def execute(
        self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = FOREIGN_OUTPUT
    ) -> str:
        """Run a program in the session; returns its standard output.

        Raises:
            ProgramFailed: it ended with another exit code than 0, or took longer (`CommandTimeout`); or the program
                that answers was ended, which all that runs in a session can do.
            RefitError: it could not be run.
        """
        if self._ask is None:
            return self._engine.execute(container, argv, stdin, limit, most)
        try:
            question = json.dumps({"run": [*argv], "stdin": stdin, "limit": limit, "most": most})
            answer = self._answer(question, limit + _LATE)
            ended = _Ended.model_validate_json(answer)
        except (RefitError, ValidationError) as error:
            raise ProgramFailed(argv, "gave no answer", str(error)[-_TAIL:], None, None) from None
        why = ended.why[-_TAIL:]
        if ended.code is None:
            raise CommandTimeout(argv, f"took longer than {limit:g} s", why, None, None)
        if ended.code:
            raise ProgramFailed(argv, f"ended with exit code {ended.code}", why, None, ended.code)
        return ended.said[:most]


@contextmanager
def visiting(engine: _Within, session: Session) -> Iterator[Visit]:
    """Ask a session that runs for as long as the `with` block, two minutes at most."""
    with ExitStack() as started:
        ask: Callable[[str], str] | None = None
        try:
            ask = started.enter_context(engine.dialogue(session.container, PROBE, _LIMIT))
            _within(_START_SECONDS, ask, _script())
        except RefitError:  # there is no Python in it, or another one can be started
            started.close()
            ask = None
        yield Visit(engine, session, ask)


def _within(limit: float, ask: Callable[[str], str], question: str) -> str:
    """The answer to a question within so many seconds.

    Raises:
        RefitError: there is none.
    """
    try:
        return within(limit, partial(ask, question))
    except TimeoutError:  # the call ends with the program, which the end of the visit ends
        raise RefitError(f"The program that looks into the session took longer than {limit:g} s.") from None


def _script() -> str:
    """The line that lets `PROBE` answer questions: `look` comes from the program that looks."""
    looks, answers = (file.read_text(encoding="utf-8") for file in (LOOKS, _ANSWERS))
    return f"__name__ = 'looks'; exec({looks!a}); __name__ = '__main__'; exec({answers!a})"
