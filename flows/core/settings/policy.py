"""How sessions are moved, as people write it: `migration:` in settings.yaml, in a release, at a profile of it."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from flows.core import hours
from flows.core.cron import Schedule
from flows.core.documents import Document
from flows.core.hours import Hours, read_hours


class Mode(StrEnum):
    """When a session moves, as its owner or the policy wants it."""

    when_idle = "when-idle"
    ask = "ask"
    next_start = "next-start"
    pin = "pin"
    forced_by = "forced-by"


class MissingPackages(StrEnum):
    """The way to go on where a new image can't have a system package that was installed in the session."""

    stay = "stay"
    go_on = "go-on"


def _zone_name(name: str) -> str:
    hours.zone(name)
    return name


def _hours(value: object) -> object:
    return read_hours(value) if isinstance(value, str) else value


ZoneName = Annotated[str, AfterValidator(_zone_name)]
WeeklyHours = Annotated[Hours, BeforeValidator(_hours), PlainSerializer(str)]
Percent = Annotated[float, Field(gt=0, le=100)]
Cap = Annotated[int, Field(ge=1)]


class SessionPolicy(Document):
    """The policy for a session; values of a profile go before those of its release, and these before settings.yaml."""

    mode: Mode = Field(Mode.when_idle, description="Where the owner has not chosen: when-idle, ask, next-start.")
    deadline_days: float | None = Field(None, gt=0, description="Days from a delivered notice to force; none: never.")
    notice_hours: float = Field(24.0, ge=0, description="Hours that lie between a delivered notice and force at least.")
    windows: tuple[WeeklyHours, ...] = Field((), description="Hours in which it may be moved; empty: at any time.")
    quiet: tuple[WeeklyHours, ...] = Field((), description="Hours in which it is left alone.")
    time_zone: ZoneName = Field("UTC", description="Time zone of all hours, unless the owner has their own.")
    idle_state_hours: float | None = Field(
        None, ge=0, description="Hours, where another `idle_state_hours` than the settings' holds."
    )

    @model_validator(mode="after")
    def _a_mode_for_many(self) -> Self:
        if self.mode in (Mode.pin, Mode.forced_by):
            raise ValueError(f"{self.mode!s} needs a date: it is for single sessions, by `refit session updates mode`")
        return self

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of all hours."""
        return hours.zone(self.time_zone)

    def over(self, other: SessionPolicy) -> SessionPolicy:
        """This policy, and what the other says where this says nothing."""
        return other.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class SnapshotPolicy(Document):
    """`snapshots:` in settings.yaml: when snapshots of sessions are taken by themselves, and how long they stay."""

    every_hours: float = Field(
        0.0,
        ge=0,
        description="Hours between two snapshots of a session that runs, in the pool alone; 0: none.",
    )
    newest: int = Field(3, ge=0, description="Newest snapshots without a name of each session that stay.")
    days: int = Field(7, ge=0, description="Days before today on which the last snapshot of each day stays.")
    pool_percent: float = Field(
        80.0, gt=0, le=100, description="Percent of the pool from which on the oldest ones without a name go."
    )


class Freeze(Document):
    """Days on which nobody is moved, not by force either; both are included, on each user's own calendar."""

    first: date
    last: date
    why: str = Field(min_length=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.last < self.first:
            raise ValueError(f"a freeze from {self.first} can't end on {self.last}")
        return self


class Unavailable(Document):
    """How many sessions may be stopped or starting at the same time; none: as many as there are."""

    rollout: Cap | None = Field(20, description="Sessions of a rollout that may be away at the same time; none: all.")
    host: Cap | None = Field(4, description="Of these, sessions on the same machine; none: all.")
    owner: Cap | None = Field(1, description="Of these, sessions of the same owner; none: all.")
    profile: Cap | None = Field(None, description="Of these, sessions of the same profile; none: all.")


class RolloutPolicy(Document):
    """`migration:` in settings.yaml."""

    waves: tuple[Percent, ...] = Field((1, 10, 50, 100), description="After the volunteers: percent of all, growing.")
    bake_minutes: float = Field(0.0, ge=0, description="Minutes between a wave and the next.")
    wave_hours: float = Field(24.0, gt=0, description="Hours in which a wave waits for those that can't move yet.")
    approval: bool = Field(False, description="Whether a person approves each wave before the next begins.")
    scan: bool = Field(True, description="Whether homes are compared with a new image before anybody is told of it.")
    rehearse: bool = Field(True, description="Whether each move is rehearsed on a copy of the home first.")
    watch_seconds: float = Field(
        0.0, ge=0, le=3600, description="Seconds that a moved session has to stay well before its old container goes."
    )
    keep_hours: float = Field(
        0.0, ge=0, description="Hours for which the old container of a moved session stays, stopped; 0: it doesn't."
    )
    poll_minutes: float = Field(5.0, gt=0, description="Minutes between two looks at those that can't move yet.")
    max_run_hours: float = Field(24.0, gt=0, description="Hours for which a run waits for those at most.")
    remind_hours: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (24, 1), description="Hours before a deadline at which an owner who hasn't answered is reminded, once each."
    )
    failures: float = Field(5.0, ge=0, le=100, description="Percent of a wave that may fail; of damaged homes, none.")
    remake_environments: bool = Field(
        True,
        description="Whether a move onto another Python makes virtual environments of the home anew.",
    )
    missing_packages: MissingPackages = Field(
        MissingPackages.stay,
        description="stay, or go-on without: where the new image can't have what `refit session install` installed.",
    )
    schedule: Schedule | None = Field(None, description="When a migration begins by itself: cron, in UTC.")
    when_published: bool = Field(False, description="Whether one begins as soon as an image is published.")
    move_seconds: int = Field(60, ge=1, le=3600, description="Seconds that a session is foreseen to be away at most.")
    unavailable: Unavailable = Unavailable()
    freezes: tuple[Freeze, ...] = Field((), description="Days (`first`, `last`, `why`) on which nobody is moved.")
    sessions: SessionPolicy = SessionPolicy()

    @model_validator(mode="after")
    def _growing(self) -> Self:
        if not self.waves or self.waves[-1] != 100 or list(self.waves) != sorted(set(self.waves)):
            raise ValueError("waves grow up to 100: write [1, 10, 50, 100], for instance")
        return self
