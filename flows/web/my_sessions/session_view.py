"""A session as people see it: plain data, as the API sends it and the pages show it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from flows.core.settings.policy import Mode
from flows.migrations.planning.outlook import Outlook
from flows.migrations.planning.rollout import Reason
from flows.sessions.homes.volumes import DiskUse
from flows.sessions.model import Running
from flows.sessions.people.entitlements import Role
from flows.web.people.doing import Doing


class State(StrEnum):
    """How a session is."""

    running = "running"
    starting = "starting"
    moving = "moving"
    stopping = "stopping"
    stopped = "stopped"
    down = "down"


def state(running: Running | None, doing: Doing | None, *, should_run: bool, moving: bool, busy: bool) -> State:
    """How a session is. Pure.

    Args:
        running: the state by the engine; none: it has no container.
        doing: the action on it just now.
        should_run: it ought to run.
        moving: a move of it has not ended.
        busy: somebody acts on it.
    """
    if moving:
        return State.moving
    if running is Running.running:
        return State.stopping if doing and doing.verb == "stop" else State.running
    if doing and doing.verb != "stop":
        return State.starting
    if not should_run:
        return State.stopped
    return State.starting if busy else State.down


@dataclass(frozen=True)
class Image:
    """An image: its digest, when it was published, and the bytes of its layers (compressed), as far as is known."""

    digest: str
    built: datetime | None = None
    size: int = 0


@dataclass(frozen=True)
class Update:
    """The outlook of a session.

    Attributes:
        image: that it is to have; none: it has the newest one.
        changes: which packages are others there, in words.
        mode: when it moves, as its owner has chosen or its policy says.
        chosen: whether its owner has.
        until: until when a pin holds, or the day of `forced-by`.
        snoozed_until: until when its owner has put it off.
        reason: why it doesn't move, besides work in it; none: for no other reason.
        at: before which moment it doesn't move of itself; none: no such moment.
        deadline: when it moves whatever works in it; none: never, as far as its owner was told.
        agreed: its owner has agreed to be interrupted.
        by: another person whose own recipe made that image; empty: it is of the catalog, or its owner's.
        when: all that in words.
    """

    mode: Mode
    chosen: bool
    when: str
    image: Image | None = None
    changes: str = ""
    until: str = ""
    snoozed_until: datetime | None = None
    reason: Reason | None = None
    at: datetime | None = None
    deadline: datetime | None = None
    agreed: bool = False
    by: str = ""


@dataclass(frozen=True)
class MySession:
    """A session that somebody may use.

    Attributes:
        name: with which the API and the shell know it.
        server: name of its server in the Hub; empty: its owner's default server.
        owner: its owner.
        role: as what the person comes in who asks.
        until: when that ends by itself; none: it doesn't.
        by: for a share, the person who gave it.
        state: how it is.
        url: path below this address at which its IDE is; empty: it has none.
        profile: stem of its profile.
        release: of which release.
        title: the profile for people: its IDE, bundle and base.
        image: that it has.
        update: its outlook; none: that is its owner's business.
        memory: bytes that it may take; 0: as the machine lets.
        cpus: cores that it may take; 0: as the machine lets.
        gpus: how many GPUs it has while it runs.
        disk: the disk that its home and its own volumes take, as far as it is counted.
        doing: the last action that was asked for, until it is forgotten.
    """

    name: str
    server: str
    owner: str
    role: Role
    state: State
    url: str
    profile: str
    release: str
    title: str
    image: Image
    update: Update | None = None
    until: datetime | None = None
    by: str = ""
    memory: int = 0
    cpus: float = 0.0
    gpus: int = 0
    disk: tuple[DiskUse, ...] = ()
    doing: Doing | None = None

    @property
    def is_mine(self) -> bool:
        """Whether it belongs to the person who asks."""
        return self.role is Role.owner

    @property
    def settles(self) -> bool:
        """Whether its state changes within seconds or minutes."""
        return self.state in (State.starting, State.moving, State.stopping) or bool(self.doing and not self.doing.ended)


def when(ahead: Outlook, snoozed: datetime | None, at: datetime) -> str:
    """When a session moves, in words. Pure.

    Args:
        ahead: its outlook.
        snoozed: until when its owner has put it off.
        at: the moment at which this is said.
    """
    if not ahead.is_behind:
        return "It has the newest image of its profile."
    if ahead.agreed and ahead.reason is None:
        return "It moves with the next run, as you have agreed."
    last = f" On {day(ahead.deadline)} it moves whatever works in it." if ahead.deadline else ""
    if snoozed and snoozed > at and ahead.reason is Reason.snoozed:
        return f"You have put it off until {day(ahead.at or snoozed)}.{last}"
    if ahead.reason is Reason.pinned and ahead.at:
        return f"You have pinned it: it doesn't move before {day(ahead.at)}."
    if ahead.reason is not None:
        whose = f". {ahead.by}'s own recipe made that image, and nobody else vouches for it" if ahead.by else ""
        return f"It doesn't move yet: {_FOR_OWNERS.get(ahead.reason, ahead.reason.text)}{whose}.{last}"
    return f"It moves by itself when nobody works in it.{last}"


# Where the text of a reason names a command of the operator's.
_FOR_OWNERS = {
    Reason.failed: "its move to this image was undone, and its home is as it was; `Move now` tries again",
    Reason.unfinished: "its last move was interrupted; Refit ends it within minutes",
    Reason.held: "its last move has to be looked at by the operator",
    Reason.deferred: "it was put off a moment ago, and is tried again soon",
    Reason.stopped: "it is stopped, and keeps its image until it runs",
    Reason.ask: "you are to agree",
    Reason.blocked: "the new image doesn't fit what is in its home; you are to agree",
}


def day(moment: datetime) -> str:
    """A moment for people."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def amounts(session: MySession) -> str:
    """The most that a session may take of the machine, for people."""
    gpus = f"{session.gpus} GPU{'s' if session.gpus > 1 else ''}" if session.gpus else ""
    memory = f"{session.memory / 1e9:.3g} GB of memory" if session.memory else ""
    return ", ".join(filter(None, (memory, f"{session.cpus:g} cores" if session.cpus else "", gpus)))


def age(built: datetime | None, at: datetime) -> str:
    """How old an image is, for people; empty: nobody knows."""
    if built is None:
        return ""
    days = (at - built).days
    return "of today" if days < 1 else f"{days} day{'s' if days > 1 else ''} old"
