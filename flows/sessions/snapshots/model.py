"""A snapshot of a session: plain data, no effects. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

from flows.core.errors import RefitError

LONGEST_NAME, LONGEST_NOTE = 60, 500
_NAME = re.compile(rf"[a-z0-9][a-z0-9.-]{{0,{LONGEST_NAME - 1}}}", re.ASCII)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)


class Kind(StrEnum):
    """Why a snapshot was taken; how long it stays hangs on it."""

    named = "named"
    unnamed = "unnamed"
    scheduled = "scheduled"
    safety = "safety"
    move = "move"

    @property
    def text(self) -> str:
        """The same, for people."""
        return _TEXTS[self]


_TEXTS = {
    Kind.named: "by hand, named",
    Kind.unnamed: "by hand",
    Kind.scheduled: "by schedule",
    Kind.safety: "before a rollback",
    Kind.move: "before a move",
}


@dataclass(frozen=True)
class Snapshot:
    """The home of a session and its own volumes, as they were at a moment.

    Attributes:
        id: name of its folder; never given twice, and never that of a move, which begins with a letter.
        session: name of the session.
        name: as people call it; of one session, no two have the same.
        kind: why it was taken.
        by: the person who took it.
        at: when.
        note: that person's note about it.
        image: digest of the image that the session had.
        profile: stem of the profile that it had.
        release: the release of that.
        volumes: names of the own volumes that are in it, beside the home.
        size: bytes that the copy took when it was made; none: it shares them with the home, as in the pool.
    """

    id: str
    session: str
    name: str
    kind: Kind
    by: str
    at: datetime
    note: str = ""
    image: str = ""
    profile: str = ""
    release: str = ""
    volumes: tuple[str, ...] = ()
    size: int | None = None


def as_note(snapshot: Snapshot) -> str:
    """A snapshot as it is written beside its folder, on one line. Pure."""
    return json.dumps({**asdict(snapshot), "at": snapshot.at.isoformat()})


def from_note(text: str, session: str) -> Snapshot | None:
    """The snapshot of a session that a note tells of; none: it is damaged, or about another session. Pure."""
    try:
        document = json.loads(text)
        document |= {"kind": Kind(document["kind"]), "at": datetime.fromisoformat(document["at"])}
        snapshot = Snapshot(**{**document, "volumes": tuple(map(str, document["volumes"]))})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (snapshot.id, snapshot.name, snapshot.by, snapshot.note, snapshot.image, snapshot.profile, snapshot.release)
    is_one = snapshot.session == session and all(isinstance(part, str) for part in texts)
    return snapshot if is_one and _ID.fullmatch(snapshot.id) and snapshot.at.tzinfo else None


def check_name(name: str) -> str:
    """`name`, if a snapshot may be called so.

    Raises:
        RefitError: it may not.
    """
    if not _NAME.fullmatch(name) or name.endswith("."):
        raise RefitError(
            f"{name!r} can't be the name of a snapshot.",
            why=f"A name has a-z, 0-9, '.' and hyphens, begins with a letter or a digit, and has at most "
            f"{LONGEST_NAME} characters.",
            hint="take 'before-pandas3', for instance.",
        )
    return name


def check_note(note: str) -> str:
    """`note`, if it is short enough.

    Raises:
        RefitError: it isn't.
    """
    if len(note) > LONGEST_NOTE:
        raise RefitError(f"The note has {len(note)} characters.", hint=f"write {LONGEST_NOTE} at most.")
    return note


def name_for(kind: Kind, at: datetime, taken: Collection[str]) -> str:
    """The name of a snapshot to which nobody gave one: the moment, in UTC; with a number where that is taken."""
    prefix = {Kind.safety: "before-rollback-", Kind.move: "before-move-"}.get(kind, "")
    name = f"{prefix}{at:%Y%m%d-%H%M%S}"
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return next(each for each in (name, *numbered) if each not in taken)
