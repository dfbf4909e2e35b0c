"""In which order jobs start: each after those that it needs, the most urgent first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Generic, TypeVar

Job = TypeVar("Job", bound=Hashable)


class Order(Generic[Job]):
    """Jobs that are still to be started.

    Args:
        needs: job → the jobs that have to be done before it. One that isn't a job itself counts as done.
        urgency: job → how urgent it is; the highest starts first, and those that are equal in the order of `needs`.
        makes: job → a thing that it makes, if nobody has yet: of jobs for the same thing one goes ahead of the others.
    """

    def __init__(
        self,
        needs: Mapping[Job, Collection[Job]],
        urgency: Mapping[Job, float],
        makes: Mapping[Job, str] | None = None,
    ) -> None:
        self._urgency, self._makes, self._making = urgency, dict(makes or {}), set[str]()
        self._waiting = {job: inputs for job, names in needs.items() if (inputs := set(names) & needs.keys())}
        self._ready = [job for job in needs if job not in self._waiting]

    def start(self, fits: Callable[[Job], bool] = lambda _: True) -> Job | None:
        """The job to start now, of those for which there is room; none: all that are left wait for others."""
        ready = [job for job in self._ready if self._makes.get(job) not in self._making and fits(job)]
        if not ready:
            return None
        chosen = max(ready, key=lambda job: self._urgency.get(job, 0.0))
        self._ready.remove(chosen)
        if chosen in self._makes:
            self._making.add(self._makes[chosen])
        return chosen

    def done(self, job: Job) -> None:
        """A job is done: those that needed nothing else are ready, nobody waits for what it made.

        It was started, or was ready and has been done along with another.
        """
        if job in self._ready:
            self._ready.remove(job)
        if output := self._makes.get(job):
            self._makes = {other: made for other, made in self._makes.items() if made != output}
            self._making.remove(output)
        for waiting in self._that_need(job):
            self._waiting[waiting].remove(job)
            if not self._waiting[waiting]:
                del self._waiting[waiting]
                self._ready.append(waiting)

    def failed(self, job: Job) -> tuple[Job, ...]:
        """A job that was started has failed; returns those that will never start because of it."""
        if output := self._makes.pop(job, ""):
            self._making.discard(output)
        return self._lost(job)

    def _lost(self, job: Job) -> tuple[Job, ...]:
        direct = self._that_need(job)
        for waiting in direct:
            del self._waiting[waiting]
        return tuple(lost for waiting in direct for lost in (waiting, *self._lost(waiting)))

    def _that_need(self, job: Job) -> list[Job]:
        return [waiting for waiting, needs in self._waiting.items() if job in needs]
