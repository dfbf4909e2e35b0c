"""Work that goes on beside a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def repeated(work: Callable[[], object], pause: float) -> Iterator[None]:
    """Do something again and again in a thread for the `with` block, with `pause` seconds between."""
    over = Event()

    def go_on() -> None:
        while not over.wait(pause):
            work()

    thread = Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
