"""Sessions whose records were lost with the database: each container bears all that its session is made of.

A home that has no container any more is on record again for whoever makes a session of its name.

Wishes, rollouts and the history of moves are on no container, and stay lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from flows.core.errors import RefitError
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running, Session, nearest_legal

# Seconds: a container that only waits for a home has nothing to save.
_GRACE = 1.0


@dataclass(frozen=True)
class Recovered:
    """The result for a session that had no record, or for a home alone.

    Attributes:
        session: its name.
        container: the one that is the session from now on; empty: there is none, or it doesn't say what it is made of.
        runs: whether that runs now, as it ought to.
        others: its other containers, from moves that had ended or not: they are stopped, and left to whoever looks.
        problem: why there is no record again; empty: there is.
    """

    session: str
    container: str
    runs: bool
    others: tuple[str, ...] = ()
    problem: str = ""


def recover(sessions: Sessions) -> tuple[Recovered, ...]:
    """Record all sessions again that have containers and no record, then the homes; sessions that run go on meanwhile.

    Raises:
        RefitError: the engine or the database doesn't answer.
    """
    names = {session.name for session in sessions.store.sessions()}
    results = tuple(_recover(sessions, family) for family in without_record(sessions.engine.containers(), names))
    homes = homes_without_record(
        sessions.homes.owners(), {*sessions.store.homes(), *(result.session for result in results)}
    )
    return (*results, *(_recover_home(sessions, name, uid) for name, uid in homes.items()))


def without_record(containers: Iterable[Container], names: Collection[str]) -> tuple[tuple[Container, ...], ...]:
    """The containers of each session that isn't known, the one that is to be that session first. Pure.

    Where a move had begun, the old one comes first as long as it runs: it had proven itself. Else the one that runs and
    has the home, or has run last: those from before a move are kept for a while.
    """
    lost = sorted(
        (container for container in containers if container.session not in names),
        key=lambda container: container.session,
    )
    return tuple(
        tuple(sorted(family, key=_rank)) for _, family in groupby(lost, key=lambda container: container.session)
    )


def homes_without_record(owners: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    """Home → uid, of those that aren't known, by name; one that is half made or half removed doesn't count. Pure."""
    return {name: uid for name, uid in sorted(owners.items()) if name not in names and nearest_legal(name) == name}


def _rank(container: Container) -> tuple[bool, bool, float, int]:
    runs = container.running is Running.running
    ended = container.ended.timestamp() if container.ended and not runs else 0.0
    return container.made_from is None, not runs or container.warm, -ended, container.generation


def _recover(sessions: Sessions, family: tuple[Container, ...]) -> Recovered:
    first, *rest = family
    others, session = tuple(container.name for container in rest), first.made_from
    runs = first.running is Running.running or any(container.warm for container in family)
    if session is None:
        return Recovered(
            first.session, "", False, tuple(container.name for container in family), "another Refit has made it"
        )
    try:
        with sessions.alone(session.name):
            sessions.store.bring_back(session, should_run=runs)
            if runs:
                _go_on(sessions, session, others)
        sessions.tell_gateway_of(session.name)
    except RefitError as error:
        return Recovered(session.name, first.name, runs, others, error.what)
    return Recovered(session.name, first.name, runs, others)


def _go_on(sessions: Sessions, session: Session, others: Iterable[str]) -> None:
    """Where a move was cut short, the session may be stopped or closed, and another container may wait for its home."""
    for other in others:
        sessions.engine.stop(other, _GRACE)
    if session.gpus:
        sessions.with_gpus(session)
    sessions.engine.start(session.container)
    sessions.engine.allow_ingress(session.container)


def _recover_home(sessions: Sessions, name: str, uid: int) -> Recovered:
    try:
        sessions.store.bring_home_back(name, uid)
    except RefitError as error:
        return Recovered(name, "", False, problem=error.what)
    return Recovered(name, "", False)
