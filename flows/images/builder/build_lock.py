"""Building and pruning exclude each other: many build at once, whoever prunes is alone.

Leases in the database keep apart runs on all machines that share it; a lock on this machine keeps them apart in the
local storage, where buildah fails with "layer not known" when images vanish under it (containers/buildah#5674).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sqlalchemy import Engine

from flows.core import progress
from flows.core.leases import LeaseTaken, held, lease
from flows.core.progress import State
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.images.builder.workspace import no_builds

WAIT = 3 * 3600.0
_PRUNING, _BUILDING = "pruning", "building "
_POLL_SECONDS = 0.2


@contextmanager
def building(database: Engine, wait: float = WAIT) -> Iterator[None]:
    """Be one of many that build, lock or publish; waits up to `wait` seconds for a prune that runs or is about to.

    Not to be nested: a prune that begins to wait in between would stop the inner one for ever.

    Raises:
        LeaseTaken: the prune still runs.
    """
    with ExitStack() as stack:

        def claim() -> bool:
            # First the claim, then the look: of two that begin at once, at least one sees the other.
            stack.enter_context(helping(database))
            if held(database, _PRUNING):
                stack.close()
                return False
            return True

        if not wait_until(claim, seconds=wait, pause=_POLL_SECONDS):
            raise LeaseTaken(_PRUNING, wait)
        yield


@contextmanager
def pruning(database: Engine, settings: Settings, wait: float = WAIT) -> Iterator[None]:
    """Be the only one inside the `with` block: builds that run are awaited up to `wait` seconds, new ones wait.

    Raises:
        LeaseTaken: somebody else still builds or prunes.
    """

    def builders() -> Sequence[str]:
        if holders := held(database, _BUILDING):
            progress.report("prune", State.waiting, "until nothing is built")
        return holders

    with lease(database, _PRUNING, wait=wait):
        if left := wait_until(builders, enough=operator.not_, seconds=wait, pause=_POLL_SECONDS):
            raise LeaseTaken(left[0].strip(), wait)
        with no_builds(settings):
            yield


@contextmanager
def helping(database: Engine) -> Iterator[None]:
    """Let no prune begin inside the `with` block, for the sake of a run that is `building`; waits for nobody.

    A helper goes on for a while when that run was killed. The first place that is free is taken: they stay few.
    """
    number = 0
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lease(database, f"{_BUILDING}{number}", wait=0))
                break
            except LeaseTaken:
                number += 1
        yield
