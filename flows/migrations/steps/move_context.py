"""The session of a move, its containers and its home, as the steps of both ways see them."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from flows.core import fence
from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.settings import Settings
from flows.core.waiting import retry
from flows.migrations.journal import Journal
from flows.migrations.move import Move
from flows.migrations.move_steps import Code
from flows.migrations.results import Outcome
from flows.migrations.steps import shutdown_notice
from flows.sessions.ide.login_notice import LEFT
from flows.sessions.ide.reopening import Opened
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running, Session
from flows.sessions.others.all_others import Others

# How often the engine is asked again what there is, and how long it is given to recover in between.
LISTED_AGAIN, LIST_PAUSE_SECONDS = 3, 1.0


class MoveContext:
    """The context of the steps forth and back.

    Attributes:
        settings: those in force.
        sessions: those of this machine.
        journal: the lines of all moves.
        others: sessions that others own.
    """

    def __init__(self, settings: Settings, sessions: Sessions, journal: Journal) -> None:
        self.settings, self.sessions, self.journal = settings, sessions, journal
        self.others = Others(settings)

    def containers(self, session: str) -> tuple[Container, ...]:
        """The containers of a session.

        An engine that doesn't answer once must not leave a session where it is: half way, perhaps stopped.
        """

        def pause(_: int) -> float:
            fence.check()
            return LIST_PAUSE_SECONDS

        return retry(
            lambda: self.sessions.engine.containers(session), RefitError, attempts=LISTED_AGAIN + 1, pause=pause
        )

    @property
    def keeps_snapshots(self) -> bool:
        """Whether a home can be compared with what it was, and brought back."""
        return self.sessions.homes.keeps_snapshots

    def runs(self, session: Session) -> bool:
        """Whether it runs, and has its home."""
        container = next((each for each in self.containers(session.name) if each.name == session.container), None)
        return bool(container and container.running is Running.running and not container.warm)

    def changes(self, move: Move, *, at_a_glance: bool = False) -> tuple[str, ...]:
        """Paths of the home that are otherwise than the new image found them, besides those that change by themselves.

        It found the home of the snapshot to which a rollback goes back, else that of the stop. By themselves change
        those that the IDE writes, and the notice that `verify` removes.
        """
        if not self.keeps_snapshots:  # nobody can tell: see `NO_SNAPSHOT`
            return ()
        own, snapshot = (*move.after.access.own_paths, f"/{LEFT}"), move.back_to or move.id
        return self.sessions.homes.differences(move.before, snapshot, own, at_a_glance=at_a_glance)

    def keep_home(self, move: Move, changed: tuple[str, ...]) -> Outcome:
        """Leave a home as somebody may have changed it, with its snapshot."""
        snapshot = self.sessions.homes.snapshot_place(move.before.name, move.id)
        way_back = f"`refit home snapshot restore {move.before.name} {move.id}`"
        what = f"the home was changed, maybe by its user, and left so: {some(changed)}"
        return Outcome(f"{what}; as it was before: {snapshot}, {way_back}", Code.home_kept)

    def used(self, move: Move, limit: float = 30.0) -> bool | None:
        """Whether anybody has used the new container since it started; none if it doesn't say so in `limit` seconds."""
        if not says_used(move.after):
            return None
        try:
            return self.sessions.jupyter(move.after).used(limit)
        except RefitError:
            return None

    def no_room(self, waiting: Callable[[], int]) -> str:
        """Why no further container may wait for its home beside so many; empty: one may.

        Where Pods are, they aren't counted: thousands would be read for each of as many moves.
        """
        if not self.sessions.engine.on_this_machine:  # what a Pod asks for includes both
            return ""
        most, needed = self.settings.warm_containers, self.settings.warm_memory
        return room_obstacle(waiting(), most, psutil.virtual_memory().available / 1e9, needed)

    def stays_cold(self, session: Session, *, after_other: bool = False) -> str:
        """Why the container of a session can't run before its home comes, beside another one of it; empty: it can.

        `after_other`: it comes after one with other GPUs, whether or not it has any.
        """
        if session.gpus and not self.sessions.gpus.shareable:
            return "one container has its GPUs, and the next one takes its place"
        if session.late_home:
            asks = bool(session.gpus) or after_other
            has_place = not asks or self.sessions.engine.has_place(session)
            return "" if has_place else "its Pod is made anew, once the other one has ended"
        could = session.access.late_home and not session.volumes
        if session.gpus and could and not self.sessions.engine.on_this_machine:
            return "its next Pod may be on another node"
        return "its image can't start before its home is mounted"

    def ended(self, move: Move) -> Opened:
        """The documents, kernels and terminals that the stop has ended."""
        return shutdown_notice.ended_by(self.journal.entries(move))


NO_SNAPSHOT = "no snapshot of the home: there are none here, so a change of the home by the new image isn't undone"


def says_used(session: Session) -> bool:
    """Whether its IDE says if anybody has used it since it started."""
    return session.access.protocol == "jupyter"


def room_obstacle(waiting: int, most: int, free: float, needed: float) -> str:
    """Why no further container may wait for its home; empty: one may. In GB. Pure."""
    if waiting >= most:
        return f"{waiting} others wait already"
    return f"{free:.1f} GB of memory are free, and {needed:g} GB are needed" if free < needed else ""
