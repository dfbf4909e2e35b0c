"""The GPUs of this machine as one pool: who has which, on record. A session takes what it needs and gives it back.

The database guards that nobody has what another has: a GPU has as many seats as sessions may share it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime

import psutil
from sqlalchemy import Engine, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write_rows
from flows.core.documents import bounds, text_of
from flows.core.errors import RefitError, UnknownName
from flows.core.leases import still_ours
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.waiting import retry
from flows.sessions.gpus.gpu import Gpu, NoGpu, Taken, choose, count_free, free_from, gpus_among, nodes_of, read_spec

_ATTEMPTS, _LOOK_SECONDS, _FIND_SECONDS = 100, 0.5, 60.0

# The boot, from which the kernel counts when programs were started, is told in whole seconds.
_CLOCK_SECONDS = 1.0


class GpuRow(Table):
    """One seat at a GPU; without a session, a person holds it."""

    __tablename__ = "gpus"

    machine: Mapped[str] = mapped_column(primary_key=True)
    gpu: Mapped[str] = mapped_column(primary_key=True)
    seat: Mapped[int] = mapped_column(primary_key=True)
    session: Mapped[str] = mapped_column(index=True)
    by: Mapped[str]
    why: Mapped[str]
    since: Mapped[datetime] = mapped_column(Instant)
    until: Mapped[datetime | None] = mapped_column(Instant)


class GpuPool:
    """The GPUs of this machine, and who has them."""

    shareable = True

    def __init__(self, settings: Settings, database: Engine) -> None:
        self._settings, self._database = settings, database
        self._machine, self._share = settings.machine_name, settings.gpu_share

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of this machine, as its CDI specifications say.

        Raises:
            RefitError: one of these is none.
        """
        folders = (folder for folder in self._settings.cdi_folders if folder.is_dir())
        files = (file for folder in folders for file in sorted(folder.iterdir()))
        specs = [file for file in files if file.suffix in (".json", ".yaml", ".yml")]
        devices = [device for file in specs for device in read_spec(text_of(file, bounds.JSON), file)]
        return gpus_among(devices, self._settings.gpu_kinds)

    def free(self) -> tuple[int, datetime | None]:
        """How many GPUs sessions can be given now, and when the next is given back, if that is known."""
        taken = self.taken()
        return count_free(self.gpus(), taken, self._share), free_from(taken)

    def taken(self) -> tuple[Taken, ...]:
        """The GPUs that are taken, and by which sessions."""
        with Transaction(self._database) as transaction:
            return tuple(map(_taken, self._rows(transaction)))

    def take(
        self, session: str, number: int, had: Collection[str] = (), *, by: str, wait: float = 0.0
    ) -> tuple[str, ...]:
        """Let a session have GPUs until it gives them back; it keeps its others until `keep`.

        Args:
            session: its name.
            number: how many it wants.
            had: those that it had, if it has had any: it gets them again, if it can.
            by: the person who wants it.
            wait: seconds in which it may have to wait for others.

        Returns:
            the names of its GPUs, in order.

        Raises:
            NoGpu: there are not enough free ones; it has what it had.
        """
        return retry(lambda: self._take(session, number, had, by), NoGpu, seconds=wait, pause=_LOOK_SECONDS)

    def hold(self, gpu: str, *, by: str, why: str = "", until: datetime | None = None) -> None:
        """Keep a GPU from all sessions.

        Raises:
            UnknownName: this machine has no such GPU.
            RefitError: somebody has it.
        """
        if gpu not in (names := {device.name for device in self.gpus()}):
            raise UnknownName("GPU", gpu, names)

        def work(transaction: Transaction) -> None:
            if has := [_taken(row) for row in self._begin(transaction) if row.gpu == gpu]:
                raise RefitError(
                    f"The GPU {gpu} is taken.",
                    why="\n".join(map(str, has)),
                    hint="wait, or stop that session first.",
                )
            for seat in range(self._share):
                transaction.add(self._row(gpu, seat, "", by, why, until))

        try:
            write_rows(self._database, work)
        except IntegrityError:
            raise RefitError(f"The GPU {gpu} was taken just now.", hint="`refit gpu list` shows by whom.") from None

    def keep(self, session: str, gpus: Collection[str]) -> tuple[str, ...]:
        """Let others have the GPUs of a session, all but these; returns which those are."""
        return self._release(lambda row: row.session == session and row.gpu not in gpus)

    def let_go(self, gpu: str) -> bool:
        """Let sessions have a GPU that a person holds; whether anybody did."""
        return bool(self._release(lambda row: not row.session and row.gpu == gpu))

    def _release(self, which: Callable[[GpuRow], bool]) -> tuple[str, ...]:

        def work(transaction: Transaction) -> tuple[str, ...]:
            still_ours(transaction.connection())
            given = [row for row in self._rows(transaction) if which(row)]
            for row in given:
                transaction.delete(row)
            return tuple(sorted({row.gpu for row in given}))

        return write_rows(self._database, work)

    def nodes(self, names: Collection[str]) -> Mapping[str, str]:
        """The device nodes of GPUs: inside a container → on the host."""
        return nodes_of(self.gpus(), names)

    def users(self, names: Collection[str], since: datetime) -> tuple[str, ...]:
        """Programs that have one of these GPUs open and were started after `since`, with their pids.

        No record keeps programs outside sessions away. Where sessions share GPUs, nobody's use is a problem.
        """
        nodes = set(self.nodes(names).values()) if names and self._share == 1 else set()
        if not nodes:
            return ()
        links = [word for node in nodes for word in ("-o", "-lname", node)][1:]
        search = ["find", "/proc", "-mindepth", "3", "-maxdepth", "3", "-path", "/proc/[0-9]*/fd/*"]
        call = [*search, "(", *links, ")", "-printf", "%h\n"]
        pids = command.run(call, root=True, accepted=(0, 1), limit=_FIND_SECONDS).stdout.split()
        return tuple(filter(None, (_program(pid, since) for pid in sorted({int(line.split("/")[2]) for line in pids}))))

    def _take(self, session: str, number: int, had: Collection[str], by: str) -> tuple[str, ...]:
        gpus = self.gpus()

        def work(transaction: Transaction) -> tuple[str, ...]:
            still_ours(transaction.connection())
            rows = self._begin(transaction)
            mine = {row.gpu for row in rows if row.session == session}
            others = [row for row in rows if row.session != session]
            chosen = choose(gpus, map(_taken, others), number, self._share, {*mine, *had})
            if chosen is None:
                raise NoGpu(session, number, gpus, [_taken(row) for row in others])
            for gpu in sorted(set(chosen) - mine):
                transaction.add(self._row(gpu, _seat(others, gpu), session, by))
            return chosen

        for _ in range(_ATTEMPTS):
            with suppress(IntegrityError):  # a seat that another run took meanwhile: look again
                return write_rows(self._database, work)
        raise RefitError(f"Other runs kept taking the GPUs for {session!r}.", hint="try again.")

    def _rows(self, transaction: Transaction) -> list[GpuRow]:
        """The GPUs that are taken here, without those that were held until a moment that is past."""
        here, held = GpuRow.machine == self._machine, GpuRow.until.is_(None) | (GpuRow.until > now())
        return list(transaction.scalars(select(GpuRow).where(here, held).order_by(GpuRow.gpu, GpuRow.seat)))

    def _begin(self, transaction: Transaction) -> list[GpuRow]:
        """The same, with the seats free that nobody has any more."""
        past = GpuRow.until.is_not(None) & (GpuRow.until <= now())
        transaction.execute(delete(GpuRow).where(GpuRow.machine == self._machine, past))
        return self._rows(transaction)

    def _row(self, gpu: str, seat: int, session: str, by: str, why: str = "", until: datetime | None = None) -> GpuRow:
        return GpuRow(
            machine=self._machine, gpu=gpu, seat=seat, session=session, by=by, why=why, since=now(), until=until
        )


def _seat(rows: Collection[GpuRow], gpu: str) -> int:
    taken = {row.seat for row in rows if row.gpu == gpu}
    return min(set(range(len(taken) + 1)) - taken)


def _taken(row: GpuRow) -> Taken:
    return Taken(row.gpu, row.session, row.by, row.why, row.since, row.until)


def _program(pid: int, since: datetime) -> str:
    """A program in words; empty if it was there before `since`, or has ended."""
    try:
        process = psutil.Process(pid)
        return f"{process.name()}, pid {pid}" if process.create_time() > since.timestamp() - _CLOCK_SECONDS else ""
    except psutil.NoSuchProcess:
        return ""
