"""Going back to a snapshot of a session: a move like every other, in which the home becomes what it was then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.migrations.journal import Journal
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.results import Result
from flows.migrations.snapshots import snapshot_actions
from flows.migrations.switch_profile import as_before, leave_alone
from flows.sessions.activity import probes
from flows.sessions.activity.seen import work_in
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from flows.sessions.snapshots.model import Snapshot

with lazily(globals()):
    from flows.migrations.executor import MoveExecutor


class InUse(RefitError):
    """Somebody or something works in a session that is to go back."""

    def __init__(self, name: str, work: str) -> None:
        super().__init__(
            f"The session {name!r} is in use: {work}.",
            why="A rollback stops it: programs that run in it end, and what isn't saved is lost.",
            hint="wait until nothing works in it, or say `--force`.",
        )


@dataclass(frozen=True)
class Foreseen:
    """The effects that a rollback would have.

    Attributes:
        session: as it is.
        snapshot: to which it goes back.
        image: digest of the image that it has afterwards.
        runs: whether it runs now; it does afterwards.
        work: the programs at work in it, or the state that a stop would lose; empty: none.
        changed: the differences of home and volumes from the snapshot, in words.
        cost: of the way back, in words; empty: none to speak of.
    """

    session: Session
    snapshot: Snapshot
    image: str
    runs: bool
    work: str
    changed: tuple[str, ...]
    cost: str = ""


def foresee(settings: Settings, name: str, snapshot: str, *, with_image: bool = False) -> Foreseen:
    """Tell the effects of a rollback; nothing is touched.

    Raises:
        RefitError: as `roll_back` does before it begins.
    """
    sessions = Sessions.open(settings)
    session, chosen, after = _prepared(sessions, name, snapshot, with_image)
    changed = snapshot_actions.diff(sessions, name, chosen.id)
    runs = sessions.running(session) is Running.running
    work = _work(settings, sessions, session) if runs else ""
    cost = sessions.homes.prices().get(name, "")
    return Foreseen(session, chosen, after.image, runs, work, changed, cost)


def roll_back(
    settings: Settings, name: str, snapshot: str, by: str, *, with_image: bool = False, force: bool = False
) -> Result:
    """Let home and own volumes of a session be what they are in a snapshot; it is stopped for it, and starts anew.

    As it is until then, the home becomes a snapshot itself. A failure is undone. A session that is stopped starts.

    Args:
        settings: those in force.
        name: the session.
        snapshot: name or id of the snapshot.
        by: the person who wants it.
        with_image: whether it gets the image back, too, that it had then.
        force: whether it is stopped whatever works in it.

    Raises:
        InUse: something works in it, and it isn't to be forced.
        RefitError: there is no such session or snapshot, the snapshot doesn't hold all, its image is gone, or a move of
            the session is not finished.
    """
    executor = MoveExecutor.open(settings)
    sessions = executor.sessions
    session, chosen, after = _prepared(sessions, name, snapshot, with_image)
    runs = sessions.running(session) is Running.running
    if runs and not force and (work := _work(settings, sessions, session)):
        raise InUse(name, work)
    if not runs:
        sessions.store.want(name, True)
    decision = Decision(name, Action.migrate, session.image, after.image, agreed=force, starts=not runs)
    packages = f"the home of {chosen.name}"
    result = executor.carry_out(decision, packages, lambda made: as_before(made, after), back_to=chosen.id, by=by)
    if result.moved and after.image != session.image:
        leave_alone(sessions.store.database, session, by)
    return result


def _prepared(sessions: Sessions, name: str, snapshot: str, with_image: bool) -> tuple[Session, Snapshot, Session]:
    """The session as it is, the snapshot, and the session with image and profile that it has afterwards."""
    session = sessions.store.session(name)
    chosen = snapshot_actions.find(sessions, name, snapshot)
    snapshot_actions.require_whole(session, chosen)
    if not with_image or chosen.image == session.image:
        return session, chosen, session
    moves = Journal(sessions.store.database).history(name)
    had = [version for move in moves for version in (move.before, move.after) if version.image == chosen.image]
    if not had:
        raise RefitError(
            f"Nobody knows any more how {name!r} was made with the image of {chosen.name!r}.",
            why=f"No move of it led to {chosen.image}, or from there.",
            hint="go back without `--with-image`, then `refit session change-profile`.",
        )
    return session, chosen, replace(as_before(session, had[-1]), image=chosen.image)


def _work(settings: Settings, sessions: Sessions, session: Session) -> str:
    seen = probes.look_at(settings, sessions.engine, [session])
    return "; ".join(filter(None, map(work_in, seen)))
