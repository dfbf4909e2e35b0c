"""The end of snapshots, and the moment of the next one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from flows.core.settings.policy import SnapshotPolicy
from flows.sessions.snapshots.model import Kind, Snapshot

AUTOMATIC = frozenset({Kind.unnamed, Kind.scheduled, Kind.safety})


@dataclass(frozen=True)
class Rules:
    """How long the snapshots of a session stay, and how often one is taken; none: as the settings say.

    Attributes:
        every_hours: hours between two that the schedule takes; 0: it takes none.
        newest: how many of those without a name stay, whatever their age.
        days: on how many days before today the last one of each day stays.
    """

    every_hours: float | None = None
    newest: int | None = None
    days: int | None = None

    def over_rules(self, other: Rules) -> Rules:
        """These rules, and the other's where these say nothing."""
        return Rules(**{name: getattr(other, name) if value is None else value for name, value in vars(self).items()})

    def over(self, policy: SnapshotPolicy) -> SnapshotPolicy:
        """The policy of the settings, with what these rules say otherwise."""
        return policy.model_copy(update={name: value for name, value in vars(self).items() if value is not None})


def outlived(
    snapshots: Collection[Snapshot], policy: SnapshotPolicy, move_hours: float, now: datetime
) -> tuple[Snapshot, ...]:
    """The snapshots of one session that nobody needs any more, oldest first.

    Args:
        snapshots: all of the session that are on record.
        policy: the retention policy of the session.
        move_hours: hours for which those of moves stay.
        now: the present moment.
    """
    automatic = sorted((one for one in snapshots if one.kind in AUTOMATIC), key=lambda one: one.at, reverse=True)
    kept = {one.id for one in automatic[: policy.newest]} | _daily(automatic, policy.days, now)
    oldest = now - timedelta(hours=move_hours)
    going = [one for one in automatic if one.id not in kept]
    going += [one for one in snapshots if one.kind is Kind.move and one.at <= oldest]
    return tuple(sorted(going, key=lambda one: (one.at, one.id)))


def _daily(newest_first: Iterable[Snapshot], days: int, now: datetime) -> set[str]:
    """The ids of the last snapshot of each of the latest days (UTC), today's among them."""
    last: dict[object, str] = {}
    for one in newest_first:
        if (now.date() - one.at.date()).days <= days:
            last.setdefault(one.at.date(), one.id)
    return set(last.values()) if days else set()


def is_due(snapshots: Iterable[Snapshot], policy: SnapshotPolicy, now: datetime) -> bool:
    """Whether the schedule takes a snapshot of a session now: any other counts as well."""
    if not policy.every_hours:
        return False
    latest = max((one.at for one in snapshots), default=None)
    return latest is None or now - latest >= timedelta(hours=policy.every_hours)


def first_to_go(snapshots: Iterable[Snapshot]) -> Snapshot | None:
    """The snapshot that goes first where the pool is fuller than it may be; none: only those stay that are somebody's.

    One that is younger than an hour stays: somebody may have gone back a moment ago.
    """
    candidates = [one for one in snapshots if one.kind in AUTOMATIC | {Kind.move}]
    latest = max((one.at for one in candidates), default=None)
    old = [one for one in candidates if latest and one.at <= latest - timedelta(hours=1)]
    return min(old, key=lambda one: (one.at, one.id), default=None)


def images_kept(snapshots: Iterable[Snapshot], most: int) -> dict[str, str]:
    """Digest → which snapshot names it, for so many images that the newest snapshots name."""
    kept: dict[str, str] = {}
    for one in sorted(snapshots, key=lambda one: one.at, reverse=True):
        if one.image and len(kept) < most:
            kept.setdefault(one.image, f"the snapshot {one.name} of session {one.session}")
    return kept
