"""Verbs of those who administer the Hub: who is on what image, who is behind and why, and how rollouts go on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import Field

from flows.migrations.notifications.fleet import Fleet, RolloutLine, SessionLine
from flows.migrations.planning.rollout import BLOCKING, RolloutStatus
from flows.migrations.rollouts.control import steer
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.verbs.context import Nothing, Parameters, Verb, VerbContext
from flows.web.people.scopes import Scope

_MOST = 2000


class Step(StrEnum):
    """A step by which a rollout is steered."""

    approve = "approve"
    pause = "pause"
    resume = "resume"
    abort = "abort"


@dataclass(frozen=True)
class Wave:
    """A wave of a rollout: how many sessions it has moved, how many of its moves failed, how many sessions are left."""

    title: str
    moved: int
    failed: int
    left: int
    health: str


@dataclass(frozen=True)
class Rollout:
    """The rollout of an image.

    Attributes:
        image: its digest.
        profile: the profile of the image.
        release: of which release.
        state: as `RolloutStatus`; `complete` where nobody is left.
        begun: when.
        waves: those that it has.
        steps: the actions that are possible now.
    """

    image: str
    profile: str
    release: str
    state: str
    begun: datetime
    waves: tuple[Wave, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Placed:
    """Where a session stands.

    Attributes:
        session: its name.
        owner: its owner; empty: it has none who is known.
        image: digest of its image.
        newest: digest of the image that it is to have; empty: there is none.
        behind: whether that is another one.
        overdue: whether its deadline has passed.
        at: when it moves, as far as can be told.
        deadline: when it moves whatever works in it.
        why: why it hasn't moved, for people.
    """

    session: str
    owner: str
    image: str
    newest: str
    behind: bool
    overdue: bool
    at: datetime | None
    deadline: datetime | None
    why: str


@dataclass(frozen=True)
class Overview:
    """All rollouts that matter, and where sessions stand, as they were seen at some moment of the last half minute."""

    at: datetime
    rollouts: tuple[Rollout, ...]
    sessions: tuple[Placed, ...]


class Steering(Parameters):
    """A step, and the rollout that takes it."""

    image: str = Field(
        min_length=12, max_length=71, pattern=r"^(sha256:)?[0-9a-f]+$", description="Digest of its image."
    )
    step: Step = Field(
        description="approve lets the next wave begin; moves that have begun come to their end in any case."
    )


def overview(fleet: Fleet, owners: dict[str, str], at: datetime) -> Overview:
    """The overview of operators, by a plan. Pure."""
    ordered = sorted(fleet.sessions, key=lambda line: (not line.overdue, not _is_behind(line), line.session))
    placed = tuple(_placed(line, owners.get(line.session, "")) for line in ordered[:_MOST])
    return Overview(at, tuple(map(_rollout, fleet.rollouts)), placed)


def steps(line: RolloutLine) -> tuple[Step, ...]:
    """The steps that a rollout can take now. Pure."""
    if line.way is RolloutStatus.running and not line.complete:
        waits = any(wave.health in BLOCKING for wave in line.waves)
        return (*((Step.approve,) if waits else ()), Step.pause, Step.abort)
    if line.way is RolloutStatus.paused:
        return Step.resume, Step.abort
    return (Step.resume,) if line.way is RolloutStatus.aborted else ()


def _rollout(line: RolloutLine) -> Rollout:
    waves = tuple(
        Wave(wave.title, wave.moved, wave.failed, wave.left, wave.health.text if wave.health else "")
        for wave in line.waves
    )
    state = "complete" if line.complete else line.way.value
    return Rollout(line.image, line.profile, line.release, state, line.begun, waves, steps(line))


def _is_behind(line: SessionLine) -> bool:
    return line.newest not in ("", line.image)


def _placed(line: SessionLine, owner: str) -> Placed:
    words = (line.session, owner, line.image, line.newest, _is_behind(line), line.overdue)
    return Placed(*words, line.at, line.deadline, line.why)


def _overview(context: VerbContext, _: Caller, __: str, ___: Nothing) -> Overview:
    fleet, at = context.lookout.fleet()
    return overview(fleet, context.lookout.sessions.store.owners(), at)


def _steer(context: VerbContext, caller: Caller, _: str, steering: Steering) -> Overview:
    image = f"sha256:{steering.image.removeprefix('sha256:')}" if len(steering.image) >= 64 else steering.image
    steer(steering.step.value, image, context.settings, caller.person)
    context.lookout.forget_fleet()
    return _overview(context, caller, "", Nothing())


VERBS = (
    Verb(
        "overview",
        "GET",
        "/overview",
        Scope.operate,
        "See who is on what image, who is behind and why, and how rollouts go.",
        _overview,
        gives=Overview,
    ),
    Verb(
        "steer",
        "POST",
        "/rollouts",
        Scope.operate,
        "Approve, pause, resume or abort the rollout of an image.",
        _steer,
        Steering,
        Overview,
    ),
)
