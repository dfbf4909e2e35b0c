"""Stages that a run has others build: kept in Refit's database, where builders on all machines find them.

The builder of a stage holds the lease of its job, and its result counts only as long as that holds: a builder that
hung, and was given up meanwhile, comes too late. Run and builders say that they live by leases as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import Connection, Engine, delete, distinct, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Table, write, write_rows
from flows.core.errors import RefitError, Vanished
from flows.core.leases import Lease, LeaseRow, held, lease, still_held
from flows.images.build import Built
from flows.images.stages import Stage


class JobRow(Table):
    """A stage that a run wants to have built; `work` and `outcome` as JSON, the latter as soon as it is known."""

    __tablename__ = "jobs"

    run: Mapped[str] = mapped_column(primary_key=True)
    stage: Mapped[str] = mapped_column(primary_key=True)
    system: Mapped[str]
    urgency: Mapped[float]
    work: Mapped[str]
    note: Mapped[str]
    outcome: Mapped[str | None]


@dataclass(frozen=True)
class Work:
    """All that a builder has to know.

    Attributes:
        stage: the stage to build.
        parent: the image that it stands on, which is in the registry; none for a base.
        graft: whether its layer may be carried over from another parent.
        tools: the programs that the run would build with: with others, the stage would have another key.
    """

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    stage: Stage
    parent: Built | None
    graft: bool
    tools: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """The result of a job: a stage in the registry, or why there is none (what happened, why, what to do).

    `vanished` tells that resolving it anew mends that.
    """

    built: Built | None = None
    problem: tuple[str, str, str] = ("", "", "")
    vanished: bool = False

    @classmethod
    def failed(cls, error: Exception, machine: str) -> Outcome:
        """The outcome of a job that failed on this machine."""
        if isinstance(error, RefitError):
            words = (f"{error.what} (on {machine})", error.why, error.hint)
            return cls(problem=words, vanished=isinstance(error, Vanished))
        return cls(problem=(f"{type(error).__name__}: {error} (on {machine})", "", ""))

    def result(self) -> Built:
        """The stage that was built.

        Raises:
            RefitError: it was not.
        """
        if self.built is None:
            what, why, hint = self.problem
            raise (Vanished if self.vanished else RefitError)(what, why=why, hint=hint)
        return self.built


@dataclass(frozen=True)
class State:
    """Where a job is: who is at it and what they do, in words, or what came out."""

    stage: str
    system: str
    taken: bool
    note: str
    outcome: Outcome | None


_WORK, _OUTCOME = TypeAdapter(Work), TypeAdapter(Outcome)


class Jobs:
    """The jobs of one run.

    Args:
        database: the one that run and builders share.
        run: its name, without spaces.
    """

    def __init__(self, database: Engine, run: str) -> None:
        self._database, self.run = database, run

    # --- The run ----------------------------------------------------------------------------------------------------

    def helped(self) -> AbstractContextManager[Lease]:
        """Let builders work for this run inside the `with` block."""
        return lease(self._database, _of_run(self.run), wait=0)

    def add(self, system: str, urgency: float, work: Work) -> None:
        """Let a stage be built by whoever builds for this operating system, the most urgent first; can be repeated."""
        text, name = _WORK.dump_json(work).decode(), work.stage.name
        row = {"run": self.run, "stage": name, "system": system, "urgency": urgency, "work": text, "note": ""}
        write_rows(self._database, lambda session: session.merge(JobRow(**row)))

    def states(self) -> tuple[State, ...]:
        """Where all jobs are."""
        taken = self._taken()
        columns = (JobRow.stage, JobRow.system, JobRow.note, JobRow.outcome)
        with Session(self._database) as session:
            return tuple(
                State(stage, system, stage in taken, note, _OUTCOME.validate_json(outcome) if outcome else None)
                for stage, system, note, outcome in session.execute(select(*columns).where(JobRow.run == self.run))
            )

    def builders(self) -> dict[str, tuple[str, ...]]:
        """The machines that build for this run now, and for which operating systems."""
        prefix = _of_builder(self.run)
        names = (name.removeprefix(prefix).split() for name in held(self._database, prefix))
        return {machine: tuple(systems) for machine, *systems in names}

    def remove(self, stage: str) -> None:
        """Take a job back; its result no longer matters."""
        taken_back = delete(JobRow).where(JobRow.run == self.run, JobRow.stage == stage)
        write(self._database, lambda connection: connection.execute(taken_back))

    def clear(self) -> None:
        """Forget this run with its jobs, and those that were killed before they could do so: their builders end."""
        with Session(self._database) as session:
            runs = session.scalars(select(distinct(JobRow.run))).all()
        for run in {self.run, *(run for run in runs if not self._lives(run))}:
            write(self._database, partial(_remove, run))

    # --- A builder --------------------------------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether the run still goes on."""
        return self._lives(self.run)

    def joined(self, machine: str, systems: Collection[str]) -> AbstractContextManager[Lease]:
        """Be known as a builder inside the `with` block.

        Raises:
            LeaseTaken: this machine builds for this run already.
        """
        return lease(self._database, f"{_of_builder(self.run)}{machine} {' '.join(sorted(systems))}", wait=0)

    def ready(self, systems: Collection[str]) -> Iterator[str]:
        """Names of the stages for these operating systems that nobody is at, the most urgent first."""
        taken = self._taken()
        mine = (JobRow.run == self.run, JobRow.outcome.is_(None), JobRow.system.in_(systems))
        with Session(self._database) as session:
            names = session.scalars(select(JobRow.stage).where(*mine).order_by(JobRow.urgency.desc())).all()
        yield from (name for name in names if name not in taken)

    def taken(self, stage: str) -> AbstractContextManager[Lease]:
        """Be at a stage inside the `with` block.

        Raises:
            LeaseTaken: somebody else is.
        """
        return lease(self._database, f"{_of_job(self.run)}{stage}", wait=0)

    def work(self, stage: str) -> Work | None:
        """The work to do; none: it was done, or isn't wanted any more."""
        with Session(self._database) as session:
            row = session.get(JobRow, (self.run, stage))
            return _WORK.validate_json(row.work) if row and row.outcome is None else None

    def note(self, stage: str, note: str) -> None:
        """Tell what is done to a stage now."""
        noted = update(JobRow).where(JobRow.run == self.run, JobRow.stage == stage).values(note=note)
        write(self._database, lambda connection: connection.execute(noted))

    def end(self, stage: str, outcome: Outcome, note: str, mine: Lease) -> None:
        """Write down what came out, and who did it.

        Raises:
            LeaseLost: somebody else is at it.
        """
        ended = update(JobRow).where(JobRow.run == self.run, JobRow.stage == stage)
        ended = ended.values(outcome=_OUTCOME.dump_json(outcome).decode(), note=note)

        def work(connection: Connection) -> None:
            still_held(connection, mine)
            connection.execute(ended)

        write(self._database, work)

    # ----------------------------------------------------------------------------------------------------------------

    def _taken(self) -> set[str]:
        prefix = _of_job(self.run)
        return {name.removeprefix(prefix) for name in held(self._database, prefix)}

    def _lives(self, run: str) -> bool:
        return _of_run(run) in held(self._database, _of_run(run))


def _of(run: str) -> str:
    return f"run {run} "


def _of_run(run: str) -> str:
    return f"{_of(run)}shares"


def _of_job(run: str) -> str:
    return f"{_of(run)}job "


def _of_builder(run: str) -> str:
    return f"{_of(run)}builder "


def _remove(run: str, connection: Connection) -> None:
    connection.execute(delete(JobRow).where(JobRow.run == run))
    # Nobody else's leases will ever have these names.
    connection.execute(delete(LeaseRow).where(LeaseRow.name.startswith(_of(run), autoescape=True)))
