"""Answers of an API server that are failures: in this process, every so-manieth call gets one, and isn't sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from threading import Lock
from typing import Any

import httpx2

_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}


@dataclass
class Faults:
    """How many calls were asked for, and how many have failed."""

    asked: int = 0
    failed: int = 0
    lock: Lock = field(default_factory=Lock)


@contextmanager
def faulty(every: int) -> Iterator[Faults]:
    """Let every so-manieth call within the `with` block end in 409, 429 or 500, in turn."""
    faults, statuses, handle = Faults(), cycle(_REASONS), httpx2.HTTPTransport.handle_request

    def failing(self: Any, request: httpx2.Request) -> httpx2.Response:
        with faults.lock:
            faults.asked += 1
            status = next(statuses) if faults.asked % every == 0 else 0
            faults.failed += bool(status)
        if not status:
            return handle(self, request)
        told = {"kind": "Status", "code": status, "reason": _REASONS[status], "message": "a fault of this test"}
        return httpx2.Response(status, content=json.dumps(told).encode())

    httpx2.HTTPTransport.handle_request = failing  # type: ignore[method-assign]
    try:
        yield faults
    finally:
        httpx2.HTTPTransport.handle_request = handle  # type: ignore[method-assign]
