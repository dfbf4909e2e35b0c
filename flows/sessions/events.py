"""Events in the history: plain data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The kind of an event."""

    move_begun = "move begun"
    move_ended = "move ended"
    noticed = "notice delivered"
    not_noticed = "notice not delivered"
    seen = "notice seen"
    withdrawn = "notice withdrawn"
    reminded = "owner reminded"
    leaves = "machine goes down"
    rollout_begun = "rollout begun"
    superseded = "rollout superseded"
    paused = "rollout paused"
    resumed = "rollout resumed"
    aborted = "rollout aborted"
    approved = "rollout approved"
    judged = "wave judged"
    wished = "wish changed"
    shared = "session shared"
    unshared = "share ended"
    visited = "guest came in"
    snapshot_taken = "snapshot taken"
    snapshot_removed = "snapshot removed"
    files_restored = "files restored"
    packages_installed = "packages installed"
    packages_forgotten = "packages forgotten"


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        number: 1, 2, …, without a gap.
        at: when.
        kind: the kind of event.
        session: whom it is about; empty: a rollout.
        image: the digest that a session was to move to.
        by: the person who did it.
        what: more of it, for people; nothing is decided by it.
        digest: of all this and of the digest before.
        data: facts for later decisions, as plain JSON: texts, numbers, yes and no.
    """

    number: int
    at: datetime
    kind: Kind
    session: str
    image: str
    by: str
    what: str
    digest: str
    data: Mapping[str, Any] = field(default_factory=dict)
