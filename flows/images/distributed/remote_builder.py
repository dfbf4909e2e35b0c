"""The side of the run: its stages are handed over to builders, and awaited; nobody waits for a builder for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic
from uuid import uuid4

from sqlalchemy.exc import OperationalError

from flows.core import progress
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.progress import State as Progress
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.builder.stage_builder import StageBuilder
from flows.images.distributed.job_queue import Jobs, State, Work
from flows.images.registry import Registry
from flows.images.stages import Stage

POLL = 0.2  # seconds
SILENCE = 60.0  # seconds without a word from the database, after which whoever waits gives up


class NoBuilder(RefitError):
    """A stage that nobody builds."""

    def __init__(self, stage: str, system: str, seconds: float, machines: Mapping[str, tuple[str, ...]]) -> None:
        builders = ", ".join(f"{machine} (for {', '.join(systems)})" for machine, systems in sorted(machines.items()))
        super().__init__(
            f"Nobody builds {stage}: for {seconds:g} s there was no builder for {system}.",
            why=f"These are there: {builders}." if builders else "None is there.",
            hint=f"see that a worker runs where {system} can be built (`refit queue` shows them), with the same "
            "registry and database, and how the runs of `build-stages` ended; or build it here with `--builders 0`.",
        )


@dataclass
class _Waiting:
    """A stage that was handed over; `since` when it has had no builder (steady clock)."""

    system: str
    since: float = field(default_factory=monotonic)
    note: str = ""
    result: Future[Built] = field(default_factory=Future)


class RemoteBuilder:
    """Has stages built by others, as `Builder` builds them.

    Args:
        settings: of the run.
        registry: where the stages come to lie.
        systems: stage → the operating system that it is built for.
        urgency: stage → how urgent it is; the highest first.
        graft: whether layers may be carried over from other parents.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        systems: Mapping[str, str],
        urgency: Mapping[str, float],
        *,
        graft: bool,
    ) -> None:
        self.jobs = Jobs(open_database(settings.database), uuid4().hex[:16])
        self._maker, self._patience = StageBuilder(settings, registry), settings.builder_timeout_seconds
        self._systems, self._urgency, self._graft = systems, urgency, graft
        self._waiting: dict[str, _Waiting] = {}
        self._ended = Event()

    def build(self, stage: Stage, parent: Built | None) -> Built:
        """Wait until somebody has built a stage.

        Raises:
            RefitError: it can't be built, or nobody is there who could.
        """
        work = Work(stage, parent, self._graft, self._maker.tools(stage))
        self._hand_over(work)
        self._waiting[stage.name] = waiting = _Waiting(self._systems[stage.name])
        try:
            if self._ended.is_set():  # nobody looks any more
                raise _over(stage.name)
            built = waiting.result.result()
        except RefitError as error:
            progress.report(stage.name, Progress.failed, error.what)
            raise
        progress.report(stage.name, Progress.reused if built.reused else Progress.done, waiting.note)
        return built

    def _hand_over(self, work: Work) -> None:
        """Also where the database is away just now; it may have heard the first time."""
        name, patient = work.stage.name, monotonic() + SILENCE
        while True:
            try:
                return self.jobs.add(self._systems[name], self._urgency.get(name, 0.0), work)
            except OperationalError:
                if self._ended.wait(POLL) or monotonic() > patient:
                    raise

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let builders work inside the `with` block; when it is left, they end what they are at."""
        with self.jobs.helped():
            watching = Thread(target=self._watch, daemon=True)
            watching.start()
            try:
                yield
            finally:
                self._ended.set()
                watching.join()
                self.jobs.clear()

    def _watch(self) -> None:
        try:
            while not self._ended.wait(POLL):
                with suppress(OperationalError):  # the next look may be luckier
                    self._look()
        finally:  # whatever it was: nobody may be left waiting
            self._ended.set()
            for name in tuple(self._waiting):
                self._waiting.pop(name).result.set_exception(_over(name))

    def _look(self) -> None:
        """See how all stages are that are awaited."""
        builders, awaited = self.jobs.builders(), dict(self._waiting)
        states = {state.stage: state for state in self.jobs.states()}
        served = {system for systems in builders.values() for system in systems}
        for name, waiting in awaited.items():
            state = states.get(name)
            if state is None or state.outcome:
                self._end(name, state)
            elif state.taken or waiting.system in served:
                waiting.since = monotonic()
                self._tell(name, Progress.running if state.taken else Progress.waiting, waiting, state.note)
            elif monotonic() > waiting.since + self._patience:
                self.jobs.remove(name)
                self._waiting.pop(name).result.set_exception(NoBuilder(name, waiting.system, self._patience, builders))
            else:
                self._tell(name, Progress.waiting, waiting, f"for a builder for {waiting.system}")

    def _tell(self, name: str, state: Progress, waiting: _Waiting, note: str) -> None:
        if note != waiting.note:
            waiting.note = note
            progress.report(name, state, note)

    def _end(self, name: str, state: State | None) -> None:
        waiting = self._waiting.pop(name)
        try:
            if state is None or state.outcome is None:
                raise RefitError(f"{name} was taken back: another run believed that this one was dead.")
            waiting.note = state.note
            waiting.result.set_result(state.outcome.result())
        except RefitError as error:
            waiting.result.set_exception(error)


def _over(stage: str) -> RefitError:
    return RefitError(f"The run ended before {stage} was built.")
