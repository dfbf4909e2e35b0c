"""The output of a build's programs goes live to the log of the Prefect run."""

from __future__ import annotations

import logging
from contextvars import copy_context
from threading import Lock, Timer

logger = logging.getLogger("refit.build")
# The root logger's level (WARNING) would swallow it.
logger.setLevel(logging.INFO)

PAGE_SECONDS = 1.0
PAGE_SIZE = 1 << 16  # characters; Prefect cuts off what is above 1 MB


class Live:
    """Sends lines in pages, each after a second at most.

    A record of each line would cost this process 0.3 ms and the server 2 ms, and there are builds that say 100,000.

    Args:
        title: the first line of each page.
    """

    def __init__(self, title: str) -> None:
        self._title, self._page, self._size, self._lock = title, list[str](), 0, Lock()
        # Threads of others don't know whose run it is, and Prefect would drop what they say.
        self._context = copy_context()
        self._due: Timer | None = None

    def __call__(self, line: str | None) -> None:
        """Take a line, from any thread; None once the program has ended that said them."""
        with self._lock:
            if line is not None:
                self._page.append(line)
                self._size += len(line) + 1
            if line is None or self._size >= PAGE_SIZE:
                self._send()
            elif self._due is None:
                self._due = Timer(PAGE_SECONDS, self, [None])
                self._due.daemon = True
                self._due.start()

    def _send(self) -> None:
        if self._due:
            self._due.cancel()
        page, self._page, self._size, self._due = "\n".join(self._page), [], 0, None
        if page.strip():
            self._context.run(logger.info, "%s:\n%s", self._title, page)
