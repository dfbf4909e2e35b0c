"""The side of a builder: it takes stages that are ready as long as the run goes on that wants them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from itertools import islice
from threading import Event

from sqlalchemy.exc import OperationalError

from flows.core import progress
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.leases import LeaseLost, LeaseTaken
from flows.core.programs import command
from flows.core.progress import Report
from flows.core.progress import State as Progress
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.host import tools
from flows.images.build import Builder
from flows.images.builder.build_lock import helping
from flows.images.builder.stage_builder import StageBuilder
from flows.images.builder.workspace import recover
from flows.images.distributed.job_queue import Jobs, Outcome, Work
from flows.images.distributed.remote_builder import POLL, SILENCE
from flows.images.registry import Registry


class Unlike(RefitError):
    """This machine would build something else than the run wants."""

    def __init__(self, machine: str, expected: str, here: str) -> None:
        super().__init__(
            f"{machine} can't build for this run.",
            why=f"The run was planned with {expected}; here is {here}: its stages would not be found again.",
            hint="install the same on all machines.",
        )


class _Over(BaseException):
    """The run has ended while this builder was at its stages."""


class BuildWorker:
    """A builder for one run, on this machine.

    Args:
        settings: of this machine.
        run: the run that wants stages.
        systems: the operating systems that it builds for.
    """

    def __init__(self, settings: Settings, run: str, systems: Sequence[str]) -> None:
        registry = Registry(settings)
        self._settings, self._systems, self._machine = settings, systems, settings.machine_name
        self._database = open_database(settings.database)
        self._jobs = Jobs(self._database, run)
        self._maker = StageBuilder(settings, registry)
        self._builders = {graft: Builder(settings, registry, graft=graft) for graft in (True, False)}
        self._leaving, self._done = Event(), list[str]()
        self._unlike: Unlike | None = None

    def serve(self) -> tuple[str, ...]:
        """Build as much at once as this machine can, until the run is over; returns the stages that came out.

        When this ends, so has every program that was started for it.

        Raises:
            LeaseTaken: this machine builds for the run already.
            Unlike: its programs are others than those of the run.
        """
        recover(self._settings)
        at_once = tools.builds_at_once(self._settings)
        with (
            suppress(_Over),
            helping(self._database),
            self._jobs.joined(self._machine, self._systems),
            progress.listening(self._tell),
            ThreadPoolExecutor(at_once) as pool,
            command.terminating_children(),
        ):
            try:
                self._work(pool, at_once)
            except BaseException:
                self._leaving.set()  # first of all: programs that are ended now have not failed
                raise
        return tuple(self._done)

    def _work(self, pool: ThreadPoolExecutor, at_once: int) -> None:
        running: dict[str, Future[None]] = {}
        heard = time.monotonic()

        def is_over() -> bool:
            nonlocal heard
            try:
                if not self._jobs.is_wanted:
                    return True
                self._look(pool, running, at_once)
                heard = time.monotonic()
            except OperationalError:  # the database may be back in a moment
                return time.monotonic() > heard + SILENCE
            return False

        wait_until(is_over, pause=POLL)
        if running:
            raise _Over

    def _look(self, pool: ThreadPoolExecutor, running: dict[str, Future[None]], at_once: int) -> None:
        """Start as many stages as there is room for; none any more once it turned out that this machine is another."""
        for stage in [stage for stage, future in running.items() if future.done()]:
            try:
                running.pop(stage).result()
            except Unlike as unlike:
                self._unlike = unlike
        if self._unlike:
            if not running:
                raise self._unlike
            return
        ready = (stage for stage in self._jobs.ready(self._systems) if stage not in running)
        for stage in islice(ready, at_once - len(running)):
            # In a copy of the context, what it says goes into the log of this flow run.
            running[stage] = pool.submit(copy_context().run, self._take, stage)

    def _take(self, stage: str) -> None:
        # Without a word from us, the job is free again, and whoever takes it finds what was built by its key.
        with (
            suppress(LeaseTaken, LeaseLost, OperationalError),
            self._jobs.taken(stage) as mine,
            command.stopping(self._leaving),
        ):
            if work := self._jobs.work(stage):
                self._jobs.note(stage, self._machine)
                outcome = self._build(work)
                if not self._leaving.is_set():
                    how = outcome.built.how if outcome.built else "failed"
                    self._jobs.end(stage, outcome, f"{how} on {self._machine}", mine)
                    self._done.append(stage)

    def _build(self, work: Work) -> Outcome:
        here = self._maker.tools(work.stage)
        if others := {name: here.get(name) for name, version in work.tools.items() if here.get(name) != version}:
            raise Unlike(self._machine, _words({name: work.tools[name] for name in others}), _words(others))
        try:
            return Outcome(self._builders[work.graft].build(work.stage, work.parent))
        except (LeaseLost, OperationalError):  # that is none of the stage's doing
            raise
        except Exception as error:  # a bug, too: another builder would only run into it again
            return Outcome.failed(error, self._machine)

    def _tell(self, report: Report) -> None:
        if report.state is Progress.running:
            with suppress(OperationalError):  # nothing depends on it
                self._jobs.note(report.thing, f"{self._machine}: {report.note}")


def _words(tools: dict[str, str] | dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'missing'}" for name, version in tools.items())
