"""What a session is: plain data, no effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from flows.catalog.model import Access


@dataclass(frozen=True)
class Session:
    """One developer's environment: what is needed to make its container anew, at any time.

    Attributes:
        name: `[a-z][a-z0-9-]*`, at most 40 characters.
        profile: stem of the profile's tag, e.g. `jupyter-minimal-deb12-py311`.
        release: e.g. `2026a`.
        image: digest (`sha256:…`) of its image.
        uid: host uid, its own; the group is 0.
        port: loopback port on the host; none where the profile has no IDE.
        home: folder on the host that persists.
        token_file: file on the host that holds the token (never the token itself: this is written to labels).
        generation: counts containers of this session; the next move creates generation + 1.
    """

    name: str
    profile: str
    release: str
    image: str
    uid: int
    port: int | None
    home: Path
    token_file: Path
    access: Access
    environment: Mapping[str, str] = field(default_factory=dict)
    generation: int = 1

    @property
    def container(self) -> str:
        """The name of its container: the same for the same session and generation."""
        return f"refit-{self.name}-{self.generation}"


class Running(StrEnum):
    """What the engine says of a container."""

    created = "created"
    running = "running"
    stopped = "stopped"


@dataclass(frozen=True)
class Container:
    """A container as the engine sees it."""

    name: str
    session: str
    generation: int
    image: str
    running: Running
