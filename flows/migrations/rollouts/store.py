"""How the rollout of each image stands: whether it goes on, who goes first, what a person has approved.

Everything is bound to a digest: a word on one image holds for no other. A newer image of the same profile and
release supersedes the rollout of an older one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from sqlalchemy import Connection, Engine, bindparam, func, select, update
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write, write_rows
from flows.core.errors import RefitError, UnknownName
from flows.migrations.planning.rollout import BLOCKING, Health, ImageKey, RolloutStatus
from flows.migrations.planning.rollout_state import RolloutState
from flows.sessions.events import Kind
from flows.sessions.history import EventRow, append

_TOLD = {RolloutStatus.running: Kind.resumed, RolloutStatus.paused: Kind.paused, RolloutStatus.aborted: Kind.aborted}
# Fewer digits of a digest than these are no name for it.
_LEAST_DIGITS = 6


class StandingRow(Table):
    """The rollout of one image."""

    __tablename__ = "rollouts"

    image: Mapped[str] = mapped_column(primary_key=True)
    profile: Mapped[str]
    release: Mapped[str]
    begun: Mapped[datetime] = mapped_column(Instant)
    canary: Mapped[str]
    way: Mapped[str]
    approved: Mapped[int]


_WAY = select(StandingRow.way).where(StandingRow.image == bindparam("of"))


class Rollouts:
    """The rollouts in Refit's database."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def all(self) -> dict[str, RolloutState]:
        """Image → how its rollout stands."""
        with Transaction(self._database) as transaction:
            approvals = select(EventRow.image, func.max(EventRow.at)).where(EventRow.kind == Kind.approved)
            when = dict(transaction.execute(approvals.group_by(EventRow.image)).tuples().all())
            return {row.image: _standing(row, when.get(row.image)) for row in transaction.scalars(select(StandingRow))}

    def way(self, image: str) -> RolloutStatus:
        """Whether the rollout of an image goes on; one that has never begun does."""
        with self._database.connect() as connection:
            return RolloutStatus(connection.execute(_WAY, {"of": image}).scalar() or RolloutStatus.running)

    def begin(self, targets: Mapping[ImageKey, str], canaries: Mapping[str, str], by: str) -> None:
        """Let the rollouts of these images begin, unless they have; older ones of the same profiles are superseded.

        Args:
            targets: profile and release → digest.
            canaries: digest → the session that goes first.
            by: the person who wants it.
        """
        for key, image in targets.items():
            write_rows(self._database, partial(self._begin, key, image, canaries.get(image, ""), by))

    def steer(self, image: str, way: RolloutStatus, by: str) -> None:
        """Let the rollout of an image go on, rest, or end; moves that have begun come to their end.

        Raises:
            RefitError: it was superseded.
        """

        def work(transaction: Transaction) -> None:
            row = transaction.get_one(StandingRow, image)
            if row.way == RolloutStatus.superseded:
                raise RefitError(
                    f"The rollout of {image} is over.",
                    why=f"It was {row.way} by that of a newer image.",
                    hint="`refit migrate plan` shows the rollouts that go on.",
                )
            if row.way != way:
                row.way = way
                append(transaction.connection(), _TOLD[way], image=image, by=by)

        write_rows(self._database, work)

    def approve(self, image: str, wave: int, by: str, what: str) -> None:
        """Write down that a person has looked at the waves of this image up to this one, and lets the next begin."""

        def work(connection: Connection) -> None:
            further = (StandingRow.image == image, StandingRow.approved < wave)
            connection.execute(update(StandingRow).where(*further).values(approved=wave))
            append(connection, Kind.approved, image=image, by=by, what=what)

        write(self._database, work)

    def judge(self, image: str, wave: int, title: str, health: Health) -> bool:
        """Write down what a wave says of an image, if that is another thing than it said last; whether it is."""

        def work(transaction: Transaction) -> bool:
            begun = transaction.get_one(StandingRow, image).begun
            if _judged(transaction, image, begun).get(wave) is health:
                return False
            data = {"wave": wave, "health": health}
            append(transaction.connection(), Kind.judged, image=image, what=f"{title}: {health.text}", data=data)
            return True

        return write_rows(self._database, work)

    def waiting(self, standing: RolloutState) -> tuple[int, ...]:
        """The waves of a rollout at which it waits for a person, by what was written down last of each."""
        with Transaction(self._database) as transaction:
            last = _judged(transaction, standing.image, standing.begun)
        return tuple(sorted(wave for wave, health in last.items() if health in BLOCKING))

    def find(self, text: str = "") -> RolloutState:
        """The rollout of the image with this digest, or the only one that isn't over.

        Args:
            text: a digest, or its first digits; empty: the only one.

        Raises:
            RefitError: there is none, or more than one.
        """
        rollouts = self.all()
        open_ones = {
            image: rollout
            for image, rollout in rollouts.items()
            if rollout.way in (RolloutStatus.running, RolloutStatus.paused)
        }
        digits = text.removeprefix("sha256:")
        if text and len(digits) < _LEAST_DIGITS:
            raise RefitError(f"{text!r} is too short.", hint="give the first twelve digits: `refit migrate status`.")
        meant = (
            {i: rollout for i, rollout in rollouts.items() if i.startswith(f"sha256:{digits}")} if text else open_ones
        )
        if len(meant) == 1:
            return next(iter(meant.values()))
        if text:
            raise UnknownName("rollout of an image", text, rollouts)
        names = ", ".join(sorted(image[7:19] for image in meant)) or "none"
        raise RefitError(f"Which rollout is meant? There are: {names}.", hint="name its image: `refit migrate status`.")

    def _begin(self, key: ImageKey, image: str, canary: str, by: str, transaction: Transaction) -> None:
        profile, release = key
        same = (StandingRow.profile == profile, StandingRow.release == release, StandingRow.image != image)
        others = transaction.scalars(
            select(StandingRow).where(*same, StandingRow.way != RolloutStatus.superseded)
        ).all()
        for other in others:
            other.way = RolloutStatus.superseded
        row = transaction.get(StandingRow, image)
        begins = row is None or row.way == RolloutStatus.superseded
        if begins:
            begun = {"begun": now(), "canary": canary, "way": RolloutStatus.running, "approved": -1}
            transaction.merge(StandingRow(image=image, profile=profile, release=release, **begun))
        # Rows first, then events: every writer locks both in this order.
        for other in others:
            append(transaction.connection(), Kind.superseded, image=other.image, by=by, what=f"by {image}")
        if begins:
            append(transaction.connection(), Kind.rollout_begun, image=image, by=by, what=f"{profile} {release}")


def _judged(transaction: Transaction, image: str, since: datetime) -> dict[int, Health]:
    """Wave → what was written down last of it in this rollout."""
    mine = (EventRow.image == image, EventRow.kind == Kind.judged, EventRow.at >= since)
    documents = map(json.loads, transaction.scalars(select(EventRow.data).where(*mine).order_by(EventRow.number)))
    return {verdict["wave"]: Health(verdict["health"]) for verdict in documents}


def _standing(row: StandingRow, approved_at: datetime | None) -> RolloutState:
    approved = (row.approved, approved_at) if approved_at and row.approved >= 0 else None
    return RolloutState(row.image, row.profile, row.release, row.begun, row.canary, RolloutStatus(row.way), approved)
