"""Threads that end with a call or a block: the same for several things at once, and a server beside other work."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from socketserver import BaseServer
from typing import TypeVar

from flows.core.lazily import lazily

with lazily(globals()):
    import ctypes

QUESTIONS = 8  # that are asked of one service at once
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of <malloc.h>
_LARGE = 128 * 1024  # bytes; at first, this is glibc's own bound
Item = TypeVar("Item")
Result = TypeVar("Result")


def at_once(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    limit: int = QUESTIONS,
    *,
    within: AbstractContextManager[object] | None = None,
) -> tuple[Result, ...]:
    """Call the function for each item; the results are in the order of the items.

    The threads have no context variables of the caller: a program that is run in one is not recorded as the caller's,
    and progress is not reported.

    Args:
        function: called with each item. The first error in the order of the items is raised as soon as all calls that
            have begun are over; the others are left out.
        items: asked for all at first, by the caller's thread.
        limit: at most so many at the same time.
        within: entered while threads run, and left before they are waited for: it can tell them to hurry.
    """
    chosen = list(items)
    if not chosen:
        return ()
    name = getattr(function, "__qualname__", "at-once")
    with ThreadPoolExecutor(min(limit, len(chosen)), name) as pool, within or nullcontext():
        return tuple(pool.map(function, chosen))


def each(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    limit: int = QUESTIONS,
    *,
    within: AbstractContextManager[object] | None = None,
) -> dict[Item, Result]:
    """Item → what the function returns for it, once for each; otherwise as `at_once`."""
    chosen = list(dict.fromkeys(items))
    return dict(zip(chosen, at_once(function, chosen, limit, within=within), strict=True))


def share_memory() -> None:
    """Let the hundreds of threads that this process is about to have keep little memory that they don't use.

    glibc's malloc has eight arenas for each core by default. Each keeps what it has needed once, so that these threads
    would hold the memory of the busiest moment many times. And once it has freed a large block, it takes such blocks
    from the arenas, which they leave with holes. Other C libraries know neither. Python looks for unreachable objects
    among those that are old after 100,000 new ones: each connection leaves a hundred.
    """
    with suppress(AttributeError, OSError):
        malloc = ctypes.CDLL(None)
        malloc.mallopt(_M_ARENA_MAX, 1)
        malloc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
    gc.set_threshold(*gc.get_threshold()[:2], 1)


@contextmanager
def answering(server: BaseServer, poll_seconds: float = 0.5) -> Iterator[None]:
    """Let a server answer in a thread inside the `with` block; its end takes `poll_seconds` at most."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": poll_seconds}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def within(seconds: float, function: Callable[[], Result]) -> Result:
    """Wait for what a call returns, in the context of the caller, and no longer than that.

    Raises:
        TimeoutError: it takes longer. It goes on in its thread; the end of this process waits for it.
    """
    pool = ThreadPoolExecutor(1)
    call = pool.submit(copy_context().run, function)
    pool.shutdown(wait=False)
    return call.result(seconds)
