"""Sessions whose records were lost with the database: each container bears all that its session is made of.

What people wished, what was rolled out and the history of moves is on no container, and stays lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

from flows.errors import RefitError
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running


@dataclass(frozen=True)
class Recovered:
    """What became of a session that had no record.

    Attributes:
        session: its name.
        container: the one that is the session from now on; empty: none of its containers says what it was made of.
        runs: whether that runs, and so ought to.
        others: its other containers, of a move that was not finished: they are left to whoever looks at them.
        problem: why there is no record again; empty: there is.
    """

    session: str
    container: str
    runs: bool
    others: tuple[str, ...] = ()
    problem: str = ""


def recover(sessions: Sessions) -> tuple[Recovered, ...]:
    """Record all sessions again that have containers and no record; what runs goes on meanwhile.

    Raises:
        RefitError: the engine or the database doesn't answer.
    """
    known = {session.name for session in sessions.store.sessions()}
    return tuple(_recover(sessions, one) for one in without_record(sessions.engine.containers(), known))


def without_record(containers: Iterable[Container], known: Collection[str]) -> tuple[tuple[Container, ...], ...]:
    """The containers of each session that isn't known, the one that is to be that session first. Pure.

    Where a move had begun, the old one comes first as long as it runs: it had proven itself. Else the one that runs.
    """
    lost = sorted((one for one in containers if one.session not in known), key=lambda one: one.session)
    return tuple(tuple(sorted(family, key=_rank)) for _, family in groupby(lost, key=lambda one: one.session))


def _rank(container: Container) -> tuple[bool, bool, int]:
    return container.made_from is None, container.running is not Running.running, container.generation


def _recover(sessions: Sessions, family: tuple[Container, ...]) -> Recovered:
    first, *rest = family
    others, runs, made = tuple(one.name for one in rest), first.running is Running.running, first.made_from
    if made is None:
        return Recovered(first.session, "", False, tuple(one.name for one in family), "another Refit has made it")
    try:
        with sessions.alone(made.name):
            sessions.store.bring_back(made, wanted=runs)
            if runs and made.gpus:
                sessions.with_gpus(made)
        sessions.tell_gateway_of(made.name)
    except RefitError as error:
        return Recovered(made.name, first.name, runs, others, error.what)
    return Recovered(made.name, first.name, runs, others)
