"""The queue of builds of people's own profiles that were asked for through the API. A bundle is in it once.

A row is the request. Builds that began and whose process was killed aren't begun again: their owners ask anew.
A request that leaves the queue leaves a result for its owner, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Instant, Table, now, write_rows
from flows.core.leases import LEASE_SECONDS, held
from flows.publishing.own_build_results import BuildResults, Outcome, Result, put
from flows.publishing.own_profiles import OF_OWNER, LastBuild, LimitReached, OwnProfiles, queued

MOST_WAITING = 200
# A build that was taken from the queue holds its lease within this time.
_TO_BEGIN = timedelta(seconds=2 * LEASE_SECONDS)
PLACES = "own-build-queue/"  # leases of those that work the queue off


class OwnBuildRequestRow(Table):
    """A build that was asked for."""

    __tablename__ = "own_build_requests"

    bundle: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)
    begun: Mapped[datetime | None] = mapped_column(Instant)


@dataclass(frozen=True)
class Request:
    """A build that was asked for: of which bundle, whose, when (UTC), and when it was begun; none: it waits."""

    bundle: str
    owner: str
    at: datetime
    begun: datetime | None = None


class BuildState(StrEnum):
    """How the newest build of a bundle is."""

    never = "never"
    waiting = "waiting"
    building = "building"
    built = "built"
    failed = "failed"
    killed = "killed"


@dataclass(frozen=True)
class BuildStatus:
    """The newest build of a bundle.

    Attributes:
        state: how it is.
        before: how many others come first, while it waits.
        at: when it was asked for, begun or ended (UTC); none: it never was.
        problem: why it failed.
        news: when it ended, if its owner hasn't been shown that yet; none: they have.
    """

    state: BuildState
    before: int = 0
    at: datetime | None = None
    problem: str = ""
    news: datetime | None = None


def status(
    request: Request | None,
    before: int,
    held: bool,
    last: LastBuild | None,
    at: datetime,
    result: Result | None = None,
) -> BuildStatus:
    """How the newest build of a bundle is. Pure.

    Args:
        request: that is in the queue.
        before: how many come before it there.
        held: whether a process waits or works for this bundle.
        last: its last build.
        at: the time of now.
        result: how a build ended last, also one that had no turn.
    """
    if request and request.begun is None:
        return BuildStatus(BuildState.waiting, before, request.at)
    if held or (request and request.begun and request.begun > at - _TO_BEGIN):
        return BuildStatus(BuildState.building, at=request.begun if request else last.began if last else None)
    if request and request.begun and (last is None or last.began < request.begun):
        return BuildStatus(BuildState.killed, at=request.begun)
    if request is None and result and (last is None or last.began <= result.at):
        news = None if result.seen else result.at
        return BuildStatus(BuildState(result.outcome.value), at=result.at, problem=result.problem, news=news)
    return _without_request(last) if last else BuildStatus(BuildState.never)


def _without_request(last: LastBuild) -> BuildStatus:
    """How a build is that nobody asked for through the API: an operator's, or a night's."""
    if last.ended is None:
        return BuildStatus(BuildState.killed, at=last.began)
    return BuildStatus(BuildState.failed if last.problem else BuildState.built, at=last.ended, problem=last.problem)


class BuildRequests:
    """The queue, in the database."""

    def __init__(self, database: Engine) -> None:
        self.database = database

    def ask(self, bundle: str, owner: str) -> None:
        """Ask for a build; one that waits already keeps its place.

        Raises:
            LimitReached: too many wait.
        """

        def put(rows: Session) -> None:
            row = rows.get(OwnBuildRequestRow, bundle)
            if row and row.begun is None and row.owner == owner:
                return
            waiting = select(func.count()).select_from(OwnBuildRequestRow).where(OwnBuildRequestRow.begun.is_(None))
            if (rows.scalar(waiting) or 0) >= MOST_WAITING:
                raise LimitReached(f"{MOST_WAITING} builds wait already.", hint="try again in an hour.")
            rows.merge(OwnBuildRequestRow(bundle=bundle, owner=owner, at=now(), begun=None))

        write_rows(self.database, put)

    def take(self) -> Request | None:
        """The next build, which counts as begun from now on; none: none is left whose owner has no other one now."""
        busy = {name.removeprefix(OF_OWNER) for name in held(self.database, OF_OWNER)}

        def begin(rows: Session) -> Request | None:
            for row in rows.scalars(select(OwnBuildRequestRow).order_by(OwnBuildRequestRow.at)):
                if row.begun is None and row.owner not in busy:
                    row.begun = now()
                    return _read(row)
            return None

        return write_rows(self.database, begin)

    def settle(self) -> tuple[Result, ...]:
        """Take the requests out whose builds were killed; returns their results."""
        if not any(request.begun for request in self.all()):
            return ()
        going = {name.removeprefix(queued("")) for name in held(self.database, queued(""))}

        def end(rows: Session) -> tuple[Result, ...]:
            moment, ended = now(), list[Result]()
            for row in rows.scalars(select(OwnBuildRequestRow).where(OwnBuildRequestRow.begun.is_not(None))):
                if row.begun and row.bundle not in going and row.begun < moment - _TO_BEGIN:
                    ended.append(Result(row.bundle, row.owner, Outcome.killed, moment))
                    put(rows, ended[-1])
                    rows.delete(row)
            return tuple(ended)

        return write_rows(self.database, end)

    def end(self, request: Request, outcome: Outcome, problem: str = "") -> Result:
        """Take a request out whose build has ended; one that was made meanwhile stays."""
        mine = (OwnBuildRequestRow.bundle == request.bundle) & (OwnBuildRequestRow.begun == request.begun)
        result = Result(request.bundle, request.owner, outcome, now(), problem)

        def write(rows: Session) -> Result:
            rows.execute(delete(OwnBuildRequestRow).where(mine))
            put(rows, result)
            return result

        return write_rows(self.database, write)

    def drop(self, bundle: str) -> None:
        """Remove the request for a bundle that is nobody's any more."""
        of_it = OwnBuildRequestRow.bundle == bundle
        write_rows(self.database, lambda rows: rows.execute(delete(OwnBuildRequestRow).where(of_it)))

    def leave(self, person: str) -> None:
        """Somebody's account goes: nobody is there for whom their builds that wait would be made."""
        waits = (OwnBuildRequestRow.owner == person) & OwnBuildRequestRow.begun.is_(None)
        write_rows(self.database, lambda rows: rows.execute(delete(OwnBuildRequestRow).where(waits)))

    def all(self) -> tuple[Request, ...]:
        """All requests, in the order in which their builds begin."""
        with Session(self.database) as rows:
            return tuple(map(_read, rows.scalars(select(OwnBuildRequestRow).order_by(OwnBuildRequestRow.at))))

    def due(self, at_once: int) -> bool:
        """Whether a request waits, and fewer than `at_once` processes work the queue off."""
        waiting = [request for request in self.all() if request.begun is None]
        return bool(waiting) and len(held(self.database, PLACES)) < min(at_once, len(waiting))

    def statuses(self, bundles: Collection[str]) -> dict[str, BuildStatus]:
        """How the newest builds of some bundles are."""
        # The results are read first: a build that begins meanwhile counts, and not the result of the one before.
        results, requests, last = (
            BuildResults(self.database).all(),
            self.all(),
            OwnProfiles(self.database).last_builds(),
        )
        waiting = [request.bundle for request in requests if request.begun is None]
        going = {name.removeprefix(queued("")) for name in held(self.database, queued(""))}
        by_bundle = {request.bundle: request for request in requests}

        def before(bundle: str) -> int:
            return waiting.index(bundle) if bundle in waiting else 0

        def of(bundle: str) -> BuildStatus:
            of_bundle = by_bundle.get(bundle), before(bundle), bundle in going, last.get(bundle), now()
            return status(*of_bundle, results.get(bundle))

        return {bundle: of(bundle) for bundle in sorted(bundles)}


def _read(row: OwnBuildRequestRow) -> Request:
    return Request(row.bundle, row.owner, row.at, row.begun)
