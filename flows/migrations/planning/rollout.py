"""The input and the output of a plan: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from flows.core.settings.policy import RolloutPolicy, SessionPolicy
from flows.migrations.move import Consent
from flows.sessions.activity.seen import Seen
from flows.sessions.model import Session
from flows.sessions.preferences import UpdatePreferences

ImageKey = tuple[str, str]
"""Profile (the stem of its tag) and release."""


class Action(StrEnum):
    """The action on one session: it moves in its turn, later, when something has happened, or not at all."""

    migrate = "migrate"
    later = "later"
    wait = "wait"
    skip = "skip"


class Reason(StrEnum):
    """Why a session doesn't move now."""

    # It stays where it is.
    current = "current"
    stopped = "stopped"
    no_image = "no-image"
    refused = "refused"
    moving = "moving"
    unfinished = "unfinished"
    held = "held"
    failed = "failed"
    not_offered = "not-offered"
    other_maker = "other-maker"
    unknown_maker = "unknown-maker"
    # It moves when something has happened of which nobody knows when it will.
    busy = "busy"
    unknown = "unknown"
    ask = "ask"
    untold = "untold"
    next_start = "next-start"
    blocked = "blocked"
    gpu = "gpu"
    room = "room"
    paused = "paused"
    aborted = "aborted"
    superseded = "superseded"
    gate = "gate"
    never = "never"
    # It moves at a time that is known.
    state = "state"
    pinned = "pinned"
    snoozed = "snoozed"
    deferred = "deferred"
    pull = "pull"
    quiet = "quiet"
    window = "window"
    frozen = "frozen"
    late = "late"

    @property
    def text(self) -> str:
        """The same, for people."""
        return _REASONS[self]


_REASONS = {
    Reason.current: "it is on this image already",
    Reason.stopped: "it is stopped; it keeps its image until it runs and is migrated",
    Reason.no_image: "its release has no image of its profile",
    Reason.refused: "the newest image of its profile can't be used",
    Reason.moving: "it is being moved",
    Reason.unfinished: "its last move is unfinished; `refit migrate recover` ends it",
    Reason.held: "its last move is held; `refit migrate history` says what to do",
    Reason.failed: "its move to this image was rolled back; `refit migrate run --session` tries again",
    Reason.not_offered: "its image is made by another person's own recipe, which isn't offered to its owner",
    Reason.other_maker: "the next image of its profile was made by somebody else than the one that it has",
    Reason.unknown_maker: "nobody can tell by whose recipe its image or the next one was made",
    Reason.busy: "it is busy",
    Reason.unknown: "nobody knows whether it is busy",
    Reason.ask: "its owner has to agree",
    Reason.untold: "it is idle, but something would be lost, and its owner has not seen a notice of it yet",
    Reason.next_start: "it moves when it is started the next time",
    Reason.blocked: "the new image doesn't fit what is in its home; its owner has to agree",
    Reason.gpu: "it waits for a GPU",
    Reason.room: "its host has no room for the new image",
    Reason.paused: "the rollout is paused",
    Reason.aborted: "the rollout was aborted",
    Reason.superseded: "a newer image has taken its place",
    Reason.gate: "an earlier wave has failures, and waits for an operator",
    Reason.never: "its policy allows no hour for a move in the time ahead",
    Reason.state: "it is idle, but something would be lost",
    Reason.pinned: "its owner has pinned it",
    Reason.snoozed: "its owner has put it off",
    Reason.deferred: "it was put off a moment ago; `refit migrate history` says why",
    Reason.pull: "the image has to be pulled first",
    Reason.quiet: "it is left alone in these hours",
    Reason.window: "it is moved in other hours",
    Reason.frozen: "nobody is moved on these days",
    Reason.late: "it can't be moved by its deadline",
}


class Lack(StrEnum):
    """A part of a move that can't be had where a session runs."""

    no_scan = "no-scan"

    @property
    def text(self) -> str:
        """The same, for people."""
        return _LACKS[self]


_LACKS = {
    Lack.no_scan: "no scan looks for files in the home that the new image would break; only the rehearsal tries it",
}


class RolloutStatus(StrEnum):
    """Whether a rollout goes on."""

    running = "running"
    paused = "paused"
    aborted = "aborted"
    superseded = "superseded"


class Health(StrEnum):
    """The health of a wave that has begun."""

    open = "open"
    passed = "passed"
    failed = "failed"
    inconclusive = "inconclusive"
    unapproved = "unapproved"

    @property
    def text(self) -> str:
        """The same, for people."""
        return "proven, and not approved yet" if self is Health.unapproved else self.value


BLOCKING = frozenset({Health.failed, Health.inconclusive, Health.unapproved})
"""The states in which the next wave doesn't begin until a person has looked."""


@dataclass(frozen=True)
class Gate:
    """Between a wave and the next: its health; `since`: when its last move so far has ended."""

    health: Health
    since: datetime


@dataclass(frozen=True)
class Candidate:
    """A session as it is now.

    Attributes:
        session: its record.
        running: whether it runs.
        obstacle: why it stays, whatever the plan: the remains of an earlier move, or an image that isn't for it.
        owner: its owner; empty: nobody who is known to have other sessions.
        by: another person whose own recipe made its next image; empty: it is of the catalog, or its owner's.
        host: where it runs.
        policy: its policy, with the word of its profile and release.
        wish: its owner's preferences.
        seen: whether somebody or something works in it; none: nobody has looked.
        notified: when its owner was told of this image, by a notice that was delivered; none: not yet.
        noticed: when its owner has seen such a notice, on a page or at a terminal; none: not yet.
        blocked: the parts of its home that don't fit the new image; empty: all fit.
        gpus: how many GPUs more it needs on the new image than are on record as its own.
        away_since: since when it is stopped or starting, by a move that goes on; none: it isn't.
        failed: digest of the image from which its last move was rolled back; empty: none.
        rests_until: until when it is left alone after its last move was deferred; none: it wasn't.
    """

    session: Session
    running: bool
    obstacle: Reason | None = None
    owner: str = ""
    by: str = ""
    host: str = ""
    policy: SessionPolicy = field(default_factory=SessionPolicy)
    wish: UpdatePreferences = field(default_factory=UpdatePreferences)
    seen: Seen | None = None
    notified: datetime | None = None
    noticed: datetime | None = None
    blocked: str = ""
    gpus: int = 0
    away_since: datetime | None = None
    failed: str = ""
    rests_until: datetime | None = None


@dataclass(frozen=True)
class Host:
    """Where sessions run.

    Attributes:
        pulls: digest → bytes that have to be pulled before a session can move to it; missing: nothing.
        rate: bytes a second that it pulls, one image after the other.
        room: bytes that pulls may take; none: enough.
        gpus: how many GPUs nobody has; none: enough.
        gpus_from: when one of the others is given back, as far as that is known; none: nobody knows.
    """

    pulls: Mapping[str, int] = field(default_factory=dict)
    rate: float = 50e6
    room: int | None = None
    gpus: int | None = None
    gpus_from: datetime | None = None


@dataclass(frozen=True)
class PlanInput:
    """The input that all sessions of a plan share.

    Attributes:
        now: when it is planned.
        targets: the digest that each profile of each release is to be on.
        policy: `migration:` of the settings.
        idle_state_hours: for how long an idle session keeps what a stop would lose, unless its policy says otherwise.
        hosts: host → what is known of it; a host that is missing has all it needs.
        gates: image and wave → its health, for those that have begun.
        ways: image → whether its rollout goes on; one that is missing does.
        canaries: the sessions that go first where the first wave would be empty; see `waves.canary`.
        refused: profile and release → why the image that their alias points at is none of `targets`.
    """

    now: datetime
    targets: Mapping[ImageKey, str]
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)
    idle_state_hours: float = 8.0
    hosts: Mapping[str, Host] = field(default_factory=dict)
    gates: Mapping[tuple[str, int], Gate] = field(default_factory=dict)
    ways: Mapping[str, RolloutStatus] = field(default_factory=dict)
    canaries: frozenset[str] = frozenset()
    refused: Mapping[ImageKey, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """One line of a plan.

    Attributes:
        session: its name.
        action: the action on it.
        old: digest of its image.
        new: digest of the image that it is to have; empty: there is none.
        reason: why it doesn't move now of itself, or not at all; none: it moves in its turn.
        detail: more of that, the work that makes it busy for instance.
        wave: the number of its wave (0: volunteers); none: it stays.
        at: when it moves, as far as can be told now; none: nobody knows.
        deadline: when it is moved whether it fits or not; none: never.
        forced: whether `at` is there by force of the deadline, whatever the session does and whatever the hour is.
        agreed: whether its owner has agreed to be interrupted.
        due: from when on it moves, were there room for all; none: nobody knows.
        starts: its owner starts it just now, so that nobody is in it.
        home: the effects on its home besides, and their cost, in words; empty: there are none.
        by: another person whose own recipe made the image, so that its owner alone agrees to it; empty: nobody.
        machine: that it has to leave a machine which goes down, and by when, in words; empty: it hasn't.
        pull: bytes (compressed) of its new image that have to be pulled first, as far as anybody has looked.
        lacks: the parts of a move that can't be had where it runs.
        unscanned: why no scan looks at its home, in words; empty: one does, or none is wanted.
    """

    session: str
    action: Action
    old: str
    new: str
    reason: Reason | None = None
    detail: str = ""
    wave: int | None = None
    at: datetime | None = None
    deadline: datetime | None = None
    forced: bool = False
    agreed: bool = False
    due: datetime | None = field(default=None, compare=False)
    starts: bool = False
    pull: int = 0
    home: str = ""
    machine: str = ""
    by: str = ""
    lacks: tuple[Lack, ...] = ()
    unscanned: str = ""

    @property
    def consent(self) -> Consent | None:
        """Why it may be stopped whatever works in it; none: it may only while nothing does."""
        if self.starts:
            return Consent.starts
        if self.agreed:
            return Consent.agreed
        return Consent.forced if self.forced else None

    @property
    def why(self) -> str:
        """Why it doesn't move now, in words; empty: it does."""
        return "; ".join(filter(None, (self.reason.text if self.reason else "", self.detail)))
