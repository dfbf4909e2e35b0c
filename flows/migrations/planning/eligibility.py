"""One session in a plan of a rollout, and why it can't move. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flows.migrations.planning.move_terms import Constraints
from flows.migrations.planning.rollout import (
    Candidate,
    Host,
    Reason,
)
from flows.migrations.planning.timetable import Calendar, Capacity


@dataclass(slots=True)
class Case:
    """A session that is to move: on what terms, and where it stands.

    Moments are seconds since 1970; `least`: it is never moved before, `ready`: it isn't moved before of itself, because
    of `reason`.
    """

    candidate: Candidate
    new: str
    terms: Constraints
    wave: int
    place: float
    least: int
    ready: int
    reason: Reason | None
    calendar: Calendar
    seats: tuple[Capacity, ...]

    @property
    def name(self) -> str:
        """The session's."""
        return self.candidate.session.name

    @property
    def order(self) -> tuple[int, float, float, str]:
        """By which sessions get their slots: wave, deadline, place, name."""
        deadline = self.terms.deadline
        return self.wave, math.inf if deadline is None else deadline, self.place, self.name


@dataclass(frozen=True, slots=True)
class Place:
    """The place that a session takes from others."""

    slot: int
    wave: tuple[str, int]
    seats: tuple[Capacity, ...]
    host: str
    gpus: int


def why_not(candidate: Candidate, new: str, refused: str = "") -> Reason | None:
    """Why a session stays where it is; none: it is to move to the image `new`, unless that was `refused`."""
    if candidate.obstacle or candidate.away_since:
        return candidate.obstacle or Reason.unfinished
    if not new:
        return Reason.refused if refused else Reason.no_image
    if candidate.session.image == new:
        return Reason.current
    if candidate.failed == new and candidate.wish.agreed != new:
        return Reason.failed
    return None if candidate.running else Reason.stopped


def pull_hours(host: Host) -> dict[str, float | None]:
    """Image → seconds until it is there, if all are pulled one after the other; none: there is no room for it."""
    hours: dict[str, float | None] = {}
    size = 0
    for image in sorted(host.pulls):
        fits = host.room is None or size + host.pulls[image] <= host.room
        size += host.pulls[image] if fits else 0
        hours[image] = size / host.rate if fits else None
    return hours
