"""The one way to ask again: until something is so, or until an attempt succeeds, with a pause between.

tenacity counts and pauses. It is imported by the first caller. A caller says what became of a time that ran out: its
error names what was waited for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from flows.core.lazily import lazily

with lazily(globals()):
    from tenacity import Retrying, retry_if_exception_type, retry_if_not_result, stop_after_attempt, stop_after_delay

T = TypeVar("T")
Pause = float | Callable[[int], float]  # seconds; or the seconds after so many attempts, which count from 1
Failures = type[Exception] | tuple[type[Exception], ...]
_PAUSE_SECONDS = 0.1


def wait_until(
    look: Callable[[], T],
    *,
    enough: Callable[[T], bool] = bool,
    seconds: float = math.inf,
    attempts: float = math.inf,
    pause: Pause = _PAUSE_SECONDS,
) -> T:
    """Look again and again until it is enough; returns what was seen last, which may not be enough.

    Args:
        look: looks once; an error of it ends the waiting.
        enough: whether nothing else is waited for.
        seconds: after which it looks no more; it looks once in any case.
        attempts: looks at most.
        pause: between two looks.
    """
    asking = _asking(seconds, attempts, pause, retry=retry_if_not_result(enough))
    return asking(look)  # type: ignore[no-any-return]


def retry(
    attempt: Callable[[], T],
    on: Failures,
    *,
    seconds: float = math.inf,
    attempts: float = math.inf,
    pause: Pause = _PAUSE_SECONDS,
) -> T:
    """Attempt again and again until nothing fails; an error other than `on` ends it.

    Args:
        attempt: may do no harm where it fails halfway.
        on: failures after which it is attempted again.
        seconds: after which nothing is attempted again.
        attempts: at most.
        pause: between two attempts.

    Raises:
        Exception: the last failure.
    """
    asking = _asking(seconds, attempts, pause, retry=retry_if_exception_type(on))
    return asking(attempt)  # type: ignore[no-any-return]


def rest(seconds: float, over: Callable[[], bool] = lambda: False, *, pause: float = 1.0) -> None:
    """Let so many seconds pass, or fewer where it is `over`, which is asked at every `pause` (seconds)."""
    until = time.monotonic() + seconds
    wait_until(
        lambda: over() or time.monotonic() >= until, pause=lambda _: max(0.0, min(pause, until - time.monotonic()))
    )


def forever(task: Callable[[], None], failed: Callable[[Exception], None], *, pause: float, longest: float) -> None:
    """Do a task again and again; never returns. One that fails is left alone for longer each time, a second at least.

    Args:
        task: called again and again.
        failed: is told of a failure.
        pause: seconds after a task that was done.
        longest: seconds after one that has failed, at most.
    """
    failures = 0

    def once() -> bool:
        nonlocal failures
        try:
            task()
            failures = 0
        except Exception as error:
            failures += 1
            failed(error)
        return False

    wait_until(
        once,
        pause=lambda _: max(pause, min(max(pause, 0.5) * 2.0 ** min(failures, 30), longest) if failures else pause),
    )


def _asking(seconds: float, attempts: float, pause: Pause, **when: Any) -> Any:
    pausing = pause if callable(pause) else lambda _: float(pause)
    return Retrying(
        stop=stop_after_delay(seconds) | stop_after_attempt(attempts),  # type: ignore[arg-type]  # none may be infinite
        # The library asks for a pause after the last attempt, too, and makes none.
        wait=lambda state: pausing(state.attempt_number) if state.attempt_number < attempts else 0.0,
        sleep=time.sleep,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        **when,
    )
