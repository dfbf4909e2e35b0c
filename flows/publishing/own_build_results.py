"""How builds of people's own profiles ended, for owners who didn't wait: of each bundle the last one, seen or not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Engine, column, delete, exists, func, select, table, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Instant, Table, now, write_rows

LONGEST = 2000  # characters of a problem
# Of `own_profiles`, which removes results along with names.
_BUNDLES = table("own_bundles", column("name"), column("owner"))
_BUILDS = table("own_builds", column("bundle"), column("began", Instant))


class Outcome(StrEnum):
    """How a build ended."""

    built = "built"
    failed = "failed"
    killed = "killed"


class OwnBuildResultRow(Table):
    """The last result of a bundle."""

    __tablename__ = "own_build_results"

    bundle: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(index=True)
    outcome: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)
    problem: Mapped[str]
    seen: Mapped[bool]


@dataclass(frozen=True)
class Result:
    """How a build ended.

    Attributes:
        bundle: the bundle that was built.
        owner: its owner.
        outcome: how it ended.
        at: when (UTC).
        problem: why it failed; empty: it didn't.
        seen: whether its owner has been shown it.
    """

    bundle: str
    owner: str
    outcome: Outcome
    at: datetime
    problem: str = ""
    seen: bool = False


def belongs(rows: Session, bundle: str, owner: str) -> bool:
    """Whether a bundle is still a person's: it may be removed during its build, and its name be another one's."""
    return rows.scalar(select(_BUNDLES.c.owner).where(_BUNDLES.c.name == bundle)) == owner


def put(rows: Session, result: Result) -> None:
    """Write a result down inside a transaction, in the place of that of the build before, if the bundle is theirs."""
    if not belongs(rows, result.bundle, result.owner):
        return
    values = {"outcome": result.outcome.value, "at": result.at, "problem": result.problem[:LONGEST]}
    rows.merge(OwnBuildResultRow(bundle=result.bundle, owner=result.owner, seen=result.seen, **values))


def forget(rows: Session, bundle: str) -> None:
    """Remove, inside a transaction, the result of a bundle that is nobody's any more."""
    rows.execute(delete(OwnBuildResultRow).where(OwnBuildResultRow.bundle == bundle))


class BuildResults:
    """The results, in the database."""

    def __init__(self, database: Engine) -> None:
        self.database = database

    def all(self) -> dict[str, Result]:
        """Bundle → its last result."""
        with Session(self.database) as rows:
            return {row.bundle: _read(row) for row in rows.scalars(select(OwnBuildResultRow))}

    def note_failure(self, bundle: str, owner: str, problem: str) -> None:
        """Note that a build failed for which nobody has asked; the same problem is told once."""

        def write(rows: Session) -> None:
            row = rows.get(OwnBuildResultRow, bundle)
            repeated = row and (row.owner, row.outcome, row.problem) == (owner, "failed", problem[:LONGEST])
            put(
                rows,
                Result(bundle, owner, Outcome.failed, now(), problem, seen=bool(repeated and row and row.seen)),
            )

        write_rows(self.database, write)

    def unseen(self, owner: str) -> int:
        """How many results a person hasn't been shown; one is no news any more once another build has begun."""
        later = (_BUILDS.c.bundle == OwnBuildResultRow.bundle) & (_BUILDS.c.began > OwnBuildResultRow.at)
        is_last = ~exists(select(_BUILDS.c.bundle).where(later))
        theirs = (OwnBuildResultRow.owner == owner) & OwnBuildResultRow.seen.is_(False) & is_last
        with Session(self.database) as rows:
            return rows.scalar(select(func.count()).select_from(OwnBuildResultRow).where(theirs)) or 0

    def mark_seen(self, owner: str, until: datetime) -> None:
        """A person has been shown their results up to that moment; one that came since stays news."""
        theirs = (OwnBuildResultRow.owner == owner) & (OwnBuildResultRow.at <= until)
        write_rows(self.database, lambda rows: rows.execute(update(OwnBuildResultRow).where(theirs).values(seen=True)))


def _read(row: OwnBuildResultRow) -> Result:
    return Result(row.bundle, row.owner, Outcome(row.outcome), row.at, row.problem, row.seen)
