"""A web server whose answers a test sets: a Debian archive, package indexes."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Barrier


@dataclass
class Site:
    """A web server: path → status, type and body; it counts what it is asked for, and answers ETags."""

    answers: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    url: str = ""
    together: Barrier | None = None
