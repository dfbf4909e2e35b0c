"""The inputs and results of stages: kept in Refit's database, where every builder finds it.

The registry says which stages are there; the ledger says why a stage is built again, how long it takes, and which
digest counts if one key ever yields two.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import cast

import sqlalchemy
from sqlalchemy import Connection, Engine, bindparam, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Instant, Table, now, write
from flows.core.leases import Lease, still_held
from flows.images.stages import Entry

_AT_ONCE = 500  # names in one question: SQLite takes a limited number of them


class StageRow(Table):
    """A stage that was built: its inputs as JSON, and the digest that counts for its key.

    `built` is later than that of every earlier build of the name, also where a clock has gone back meanwhile.
    """

    __tablename__ = "stages"

    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    digest: Mapped[str]
    inputs: Mapped[str]
    seconds: Mapped[float]
    built: Mapped[datetime] = mapped_column(Instant)


# Made once: to make a statement takes longer than to execute it.
_STAGES = cast(sqlalchemy.Table, StageRow.__table__)
_DIGESTS = select(_STAGES.c.key, _STAGES.c.digest).where(_STAGES.c.key.in_(bindparam("of", expanding=True)))
_DIGEST = select(_STAGES.c.digest).where(_STAGES.c.key == bindparam("of"))
_NEWEST = select(func.max(_STAGES.c.built)).where(_STAGES.c.name == bindparam("of"))


class TallyRow(Table):
    """How many stages of all runs were `built`, `grafted` or `reused`."""

    __tablename__ = "tallies"

    how: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int]


class Ledger:
    """The record of all stages that were ever built with this database."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def record(self, name: str, entry: Entry, lease: Lease) -> str:
        """Write down what came out of a stage, under the lease of its key; returns the digest that counts.

        That is the one which was recorded first: images may be standing on it.

        Raises:
            LeaseLost: another builder has taken the stage over.
        """

        def work(connection: Connection) -> str:
            still_held(connection, lease)
            if first := connection.scalar(_DIGEST, {"of": entry.key}):
                return str(first)
            inputs, newest = json.dumps(entry.inputs, sort_keys=True), connection.scalar(_NEWEST, {"of": name})
            built = max(now(), newest + timedelta(microseconds=1)) if newest else now()
            connection.execute(_STAGES.insert(), {**vars(entry), "inputs": inputs, "name": name, "built": built})
            return entry.digest

        return write(self._database, work)

    def forget(self, key: str, lease: Lease) -> None:
        """Let the next digest of this key count: the registry has lost what was recorded."""

        def work(connection: Connection) -> None:
            still_held(connection, lease)
            connection.execute(_STAGES.delete().where(_STAGES.c.key == key))

        write(self._database, work)

    def all(self) -> tuple[tuple[str, Entry, datetime], ...]:
        """Every stage that was ever built and counts: name, build, and when it was."""
        with Session(self._database) as session:
            return tuple(
                (row.name, Entry(row.key, row.digest, json.loads(row.inputs), row.seconds), row.built)
                for row in session.scalars(select(StageRow).order_by(StageRow.built))
            )

    def of(self, keys: Collection[str]) -> dict[str, Entry]:
        """Key → the build that counts for it, of those that were built with this database."""
        with Session(self._database) as session:
            rows = session.scalars(select(StageRow).where(StageRow.key.in_(keys)))
            return {row.key: Entry(row.key, row.digest, json.loads(row.inputs), row.seconds) for row in rows}

    def digests(self, keys: Collection[str]) -> dict[str, str]:
        """Key → the digest that counts for it, of those that were built with this database."""
        ordered = sorted(keys)
        digests: dict[str, str] = {}
        with self._database.connect() as connection:
            for start in range(0, len(ordered), _AT_ONCE):
                rows = connection.execute(_DIGESTS, {"of": ordered[start : start + _AT_ONCE]})
                digests |= {str(key): str(digest) for key, digest in rows}
        return digests

    def latest(self, names: Collection[str]) -> dict[str, Entry]:
        """The newest build of each of these stages that was ever built.

        Its seconds are the most that any build of the stage took: a graft says nothing of what making it takes.
        """
        ordered = sorted(names)
        entries: dict[str, Entry] = {}
        with Session(self._database) as session:
            for start in range(0, len(ordered), _AT_ONCE):
                some = ordered[start : start + _AT_ONCE]
                newest = (
                    select(
                        StageRow.name,
                        func.max(StageRow.built).label("built"),
                        func.max(StageRow.seconds).label("seconds"),
                    )
                    .where(StageRow.name.in_(some))
                    .group_by(StageRow.name)
                    .subquery()
                )
                rows = select(StageRow, newest.c.seconds).join(
                    newest, (StageRow.name == newest.c.name) & (StageRow.built == newest.c.built)
                )
                for row, seconds in session.execute(rows):
                    entries[row.name] = Entry(row.key, row.digest, json.loads(row.inputs), seconds)
        return entries

    def count(self, hows: Iterable[str]) -> None:
        """Count the stages of a run: each was `built`, `grafted` or `reused`."""
        numbers = sorted(Counter(hows).items())  # in one order: two runs never wait for each other

        def work(connection: Connection) -> None:
            for how, number in numbers:
                row = update(TallyRow).where(TallyRow.how == how)
                connection.execute(row.values(number=TallyRow.number + number))

        write(self._database, work)

    def counts(self) -> dict[str, int]:
        """How → how many stages of all runs."""
        with Session(self._database) as session:
            return {row.how: row.number for row in session.scalars(select(TallyRow))}
