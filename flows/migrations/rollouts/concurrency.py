"""Which of several moves begin when: in their order, as soon as all caps let them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from cachetools import TTLCache, cached

from flows.core.formatting import some
from flows.core.programs import command
from flows.migrations.planning.rollout import Decision
from flows.migrations.results import Result

logger = logging.getLogger("refit.migrations")

# How often it is asked whether sessions are back that others move.
LOOK_SECONDS = 2.0
# So many begin together, and after a moment as many again: moves that begin together do everything at the same time,
# round for round, and hundreds would wait for each other at every step.
TOGETHER, MOMENT_SECONDS = 60, 1.0
Shared = tuple[str, str]
"""A property that a session has in common with others: `owner` and whose it is, for instance."""


@dataclass(frozen=True)
class ConcurrencyLimits:
    """How many sessions may be away at the same time.

    Attributes:
        all: of all.
        each: an attribute that sessions may share → how many of those that share it; missing: as many as there are.
        of: says what a session has in common with others, by its name.
    """

    all: int
    each: Mapping[str, int]
    of: Callable[[str], Iterable[Shared]]


class AdmissionQueue:
    """Moves that wait for their turn. Pure."""

    def __init__(self, lines: Iterable[Decision], caps: ConcurrencyLimits) -> None:
        self._caps = caps
        self._waiting = {line.session: line for line in lines}
        self._here: set[str] = set()
        self._taken: Counter[Shared] = Counter()

    @property
    def over(self) -> bool:
        """Whether all have begun."""
        return not self._waiting

    def begin(self, elsewhere: Collection[str] = ()) -> list[Decision]:
        """Those that begin now, `TOGETHER` at most, in their order.

        A session that has to wait holds up none that needs another seat.

        Args:
            elsewhere: sessions that others move.
        """
        others, begun = set(elsewhere) - self._here, list[Decision]()
        occupied = Counter(seat for name in others for seat in self._seats(name))
        for line in self._waiting.values():
            if len(begun) == TOGETHER or len(self._here) + len(others) >= self._caps.all:
                break
            seats = self._seats(line.session)
            if all(self._taken[seat] + occupied[seat] < self._caps.each[seat[0]] for seat in seats):
                self._here.add(line.session)
                self._taken.update(seats)
                begun.append(line)
        for line in begun:
            del self._waiting[line.session]
        return begun

    def end(self, line: Decision) -> None:
        """Give back the seats of a session."""
        self._here.remove(line.session)
        self._taken.subtract(self._seats(line.session))

    def _seats(self, session: str) -> list[Shared]:
        return [shared for shared in self._caps.of(session) if shared[0] in self._caps.each and shared[1]]


def side_by_side(
    lines: Sequence[Decision],
    move: Callable[[Decision], Result],
    caps: ConcurrencyLimits,
    elsewhere: Callable[[Collection[str]], Collection[str]] = lambda _: (),
    leaving: Callable[[], AbstractContextManager[None]] = command.terminating_children,
) -> tuple[Result, ...]:
    """Carry out moves in threads, each as soon as the caps let it.

    Args:
        lines: the moves, each of another session.
        move: carries out one.
        caps: how many may be away at the same time.
        elsewhere: which sessions others move just now; is told of those that are moved here.
        leaving: the block that is left when this process is told to end; moves that have begun are waited for.
    """
    turns, running, ends = AdmissionQueue(lines, caps), dict[Future[Result], Decision](), dict[str, Result]()
    ended = SimpleQueue[Future[Result]]()
    look = cached(TTLCache[str, Collection[str]](1, LOOK_SECONDS), key=lambda _: "")(elsewhere)
    with ThreadPoolExecutor(caps.all) as pool, leaving():
        while running or not turns.over:
            away = () if turns.over else look({line.session for line in running.values()})
            begun = turns.begin(away)
            for line in begun:
                future = pool.submit(move, line)
                running[future] = line
                future.add_done_callback(ended.put)
            if not running:
                logger.info("waits for sessions that another run moves: %s", some(sorted(away)))
            with suppress(Empty):  # those of others are looked at again
                done = ended.get(timeout=MOMENT_SECONDS if len(begun) == TOGETHER else LOOK_SECONDS)
                line = running.pop(done)
                turns.end(line)
                ends[line.session] = done.result()
    return tuple(ends[line.session] for line in lines)
