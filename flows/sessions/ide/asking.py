"""HTTP that a session answers: its user may let it answer anything, of any length and as slowly as they like."""

from __future__ import annotations

from typing import Any

import httpx

from flows.core import outside
from flows.core.programs.command import FOREIGN_OUTPUT

_LONGEST = 60.0  # seconds
_OF_THE_WAY = ("content-encoding", "content-length", "transfer-encoding")


def client(**options: Any) -> httpx.Client:
    """A client for `ask`, which speaks HTTP alone; `options` are those of `httpx.Client`."""
    client = httpx.Client(
        trust_env=False, verify=outside.NOBODY, **options
    )  # a proxy for the outside world has no way to loopback
    outside.keep_deadlines(client)
    return client


def ask(client: httpx.Client, method: str, url: str, *, seconds: float = _LONGEST, **options: Any) -> httpx.Response:
    """Send a request and read its answer, which is bounded as a whole; `options` are those of `httpx.Client.stream`.

    Args:
        client: one that `client` made; its own timeouts hold for each step.
        method: GET, POST, …
        url: absolute, or below that of the client.
        seconds: that all may take, from the connection to the last byte.

    Raises:
        outside.TooLarge: the answer has more than `FOREIGN_OUTPUT` bytes.
        httpx.HTTPError: there is none, or not in time.
    """
    # A packed answer could be a thousand times as large, once unpacked.
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
    with outside.within(seconds), client.stream(method, url, headers=headers, **options) as answer:
        content = b"".join(outside.whole(answer, FOREIGN_OUTPUT))
    kept = [(name, value) for name, value in answer.headers.multi_items() if name.lower() not in _OF_THE_WAY]
    return httpx.Response(answer.status_code, headers=kept, content=content, request=answer.request)
