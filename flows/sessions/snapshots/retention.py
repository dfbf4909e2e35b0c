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
    automatic = sorted(
        (snapshot for snapshot in snapshots if snapshot.kind in AUTOMATIC),
        key=lambda snapshot: snapshot.at,
        reverse=True,
    )
    kept = {snapshot.id for snapshot in automatic[: policy.newest]} | _daily(automatic, policy.days, now)
    oldest = now - timedelta(hours=move_hours)
    going = [snapshot for snapshot in automatic if snapshot.id not in kept]
    going += [snapshot for snapshot in snapshots if snapshot.kind is Kind.move and snapshot.at <= oldest]
    return tuple(sorted(going, key=lambda snapshot: (snapshot.at, snapshot.id)))


def _daily(newest_first: Iterable[Snapshot], days: int, now: datetime) -> set[str]:
    """The ids of the last snapshot of each of the latest days (UTC), today's among them."""
    last: dict[object, str] = {}
    for snapshot in newest_first:
        if (now.date() - snapshot.at.date()).days <= days:
            last.setdefault(snapshot.at.date(), snapshot.id)
    return set(last.values()) if days else set()


def is_due(snapshots: Iterable[Snapshot], policy: SnapshotPolicy, now: datetime) -> bool:
    """Whether the schedule takes a snapshot of a session now: any other counts as well."""
    if not policy.every_hours:
        return False
    latest = max((snapshot.at for snapshot in snapshots), default=None)
    return latest is None or now - latest >= timedelta(hours=policy.every_hours)


def first_to_go(snapshots: Iterable[Snapshot]) -> Snapshot | None:
    """The snapshot that goes first where the pool is fuller than it may be; none: only those stay that are somebody's.

    One that is younger than an hour stays: somebody may have gone back a moment ago.
    """
    candidates = [snapshot for snapshot in snapshots if snapshot.kind in AUTOMATIC | {Kind.move}]
    latest = max((candidate.at for candidate in candidates), default=None)
    old = [candidate for candidate in candidates if latest and candidate.at <= latest - timedelta(hours=1)]
    return min(old, key=lambda snapshot: (snapshot.at, snapshot.id), default=None)


def images_kept(snapshots: Iterable[Snapshot], most: int) -> dict[str, str]:
    """Digest → which snapshot names it, for so many images that the newest snapshots name."""
    kept: dict[str, str] = {}
    for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.at, reverse=True):
        if snapshot.image and len(kept) < most:
            kept.setdefault(snapshot.image, f"the snapshot {snapshot.name} of session {snapshot.session}")
    return kept
