"""In which order jobs start: each after the one that it needs, the most urgent first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Order:
    """Jobs that are still to be started.

    Args:
        needs: job → the job that has to be done before it, or none. One that isn't a job itself counts as done.
        urgency: job → how urgent it is; the highest starts first, and those that are equal in the order of `needs`.
    """

    def __init__(self, needs: Mapping[str, str | None], urgency: Mapping[str, float]) -> None:
        self._urgency = urgency
        self._waiting = {job: need for job, need in needs.items() if need in needs}
        self._ready = [job for job in needs if job not in self._waiting]

    def start(self, fits: Callable[[str], bool] = lambda _: True) -> str | None:
        """The job to start now, of those for which there is room; none: all that are left wait for others."""
        ready = [job for job in self._ready if fits(job)]
        if not ready:
            return None
        chosen = max(ready, key=lambda job: self._urgency.get(job, 0.0))
        self._ready.remove(chosen)
        return chosen

    def done(self, job: str) -> None:
        """A job that was started is done: those that needed it are ready."""
        freed = [waiting for waiting, need in self._waiting.items() if need == job]
        for waiting in freed:
            del self._waiting[waiting]
        self._ready += freed

    def failed(self, job: str) -> tuple[str, ...]:
        """A job that was started has failed; returns those that will never start because of it."""
        direct = [waiting for waiting, need in self._waiting.items() if need == job]
        for waiting in direct:
            del self._waiting[waiting]
        return tuple(lost for waiting in direct for lost in (waiting, *self.failed(waiting)))
