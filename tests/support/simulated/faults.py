"""Faults in a simulated move: what fails when, and how a session is that nothing happened to."""

from __future__ import annotations

from collections.abc import Callable

from flows.core.errors import RefitError
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Reason
from flows.migrations.results import Result
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.sessions.history import History
from flows.sessions.model import Running, Session
from tests.support.simulated.fleet import OWN, Fleet
from tests.support.simulated.world import Killed, Point, differing


def move(sessions: Fleet, session: Session, image: str = "") -> Result:
    return sessions.executor().carry_out(sessions.to(session, image or sessions.image("new")))


def happening(sessions: Fleet, verb: str, when: str, what: Callable[[], object]) -> None:
    """The first time that an effect is so far, something happens."""
    left = [what]

    def meanwhile(point: Point) -> None:
        if (point.verb, point.when) == (verb, when) and left:
            left.pop()()

    sessions.world.meanwhile = meanwhile


def fail(why: str = "it failed") -> Callable[[], None]:
    def failing() -> None:
        raise RefitError(why)

    return failing


def healthy(sessions: Fleet, session: Session) -> bool:
    """It runs, open to people, in the only container that it has, with all that was in its home."""
    recorded = sessions.sessions.store.session(session.name)
    [box] = sessions.world.of(session.name)
    home = sessions.world.homes[str(session.home)]
    assert not differing(sessions.world.owed[str(session.home)], home, OWN)
    assert not sessions.world.snapshots and not sessions.journal.unfinished()
    assert not History(sessions.database).broken()
    return box.session == recorded and box.running is Running.running and not box.shut and not box.favoured


def never_stopped(sessions: Fleet, session: Session) -> bool:
    return not sessions.world.stops[session.container] and healthy(sessions, session)


def failing(verb: str, why: str) -> Callable[[Point], None]:
    """An effect fails each time."""

    def meanwhile(point: Point) -> None:
        if (point.verb, point.when) == (verb, "before"):
            raise RefitError(why)

    return meanwhile


def check_put_off(rollout: Fleet, verb: str, when: str, why: str) -> None:
    """A failure before a stop is no fault of the image: it is tried again, and the wave goes on."""
    planning, session = SessionPlanner(rollout.settings), rollout.sessions.store.session("s1")
    [line, other] = planning.plan([], "", begin=True)
    happening(rollout, verb, when, fail(why))
    result = rollout.executor().carry_out(line)
    assert (result.state, result.downtime, result.failed) == (State.deferred, None, True) and why in result.reason
    assert never_stopped(rollout, session)
    [waits, goes_on] = planning.plan([], "", begin=True)
    assert (waits.reason, goes_on.action) == (Reason.deferred, Action.migrate)
    assert rollout.executor().carry_out(other).moved and rollout.executor().carry_out(line).moved
    [gate] = planning.fleet().rollouts[0].waves
    assert (gate.moved, gate.failed) == (2, 0)


def kill(sessions: Fleet) -> Callable[[], None]:
    def killing() -> None:
        sessions.world.alive = False
        raise Killed

    return killing
