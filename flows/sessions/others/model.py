"""A session that somebody else owns: what is seen of it, and the verbs that a move of it needs."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Protocol

from flows.core.errors import RefitError
from flows.sessions.activity.evidence import Look
from flows.sessions.model import LONGEST_NAME, Running, Session, nearest_legal
from flows.sessions.overview import Status

# In `Session.environment` of such a session: the name of its image as its owner wrote it, to which the way back leads.
WRITTEN = "written"
# The first part of the names of all servers of a Hub.
OF_HUB = "hub"
_PLAIN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)


class SomebodyElse(RefitError):
    """Another person or program has given the session another image, or has removed it, since it was looked at."""


class Stopped(RefitError):
    """Its owner, or what ends idle sessions, has stopped it meanwhile."""


@dataclass(frozen=True)
class Owned:
    """A session of somebody else's, as it is now.

    Attributes:
        session: its record as far as Refit needs it; its image is the one that its owner's object asks for.
        runs: whether it runs with that image.
        trouble: why it can't be moved, in words; empty: it can.
        told: a warning before it is moved, in words; empty: none.
    """

    session: Session
    runs: bool
    trouble: str = ""
    told: str = ""

    @property
    def status(self) -> Status:
        """As other sessions are listed. Whether it ought to run is its owner's affair, so it counts as it is."""
        return Status(self.session, Running.running if self.runs else Running.stopped, self.runs)


class Keeper(Protocol):
    """The sessions of one owner. Failures that a person can mend are `RefitError`."""

    kind: str
    """The first part of `Session.owned_by` of its sessions."""

    lacks: str
    """The parts of a move that are missing there, in words."""

    def see(self) -> tuple[Owned, ...]:
        """All sessions."""

    def find(self, session: Session) -> Owned | None:
        """The same session as it is now; none: it is gone."""

    def look(self, session: Session) -> Look:
        """Look at a session that runs; doesn't count as activity.

        Raises:
            RefitError: nothing could be seen.
        """

    def check(self, before: Session, after: Session) -> str:
        """Find out whether the image could be put in, without doing it; returns what has to be known, in words.

        Raises:
            RefitError: it can't.
        """

    def put(self, before: Session, after: Session) -> None:
        """Let its owner's object ask for another image, by which the old program is stopped; can be repeated.

        Raises:
            SomebodyElse: it has neither the one image nor the other.
        """

    def start(self, session: Session) -> None:
        """Wait until a session runs with its image, which was put in.

        Raises:
            Stopped: its owner doesn't want it to run any more.
            SomebodyElse: it was given another image.
            RefitError: it doesn't run in time, or never will.
        """

    def prove(self, session: Session) -> str:
        """Prove that a session works which runs with its image; returns what was left out, in words.

        Raises:
            RefitError: it doesn't work.
        """


def name_of(*parts: str) -> str:
    """The name by which Refit calls a session of others: the same for the same parts, and another for others."""
    whole = "--".join(parts)
    if len(whole) <= LONGEST_NAME and whole[:1].isalpha() and all(_PLAIN.fullmatch(part) for part in parts):
        return whole
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{nearest_legal(whole)[: LONGEST_NAME - 9].rstrip('-') or 'session'}-{digest}"


def name_of_notebook(namespace: str, name: str) -> str:
    """The name of a Notebook, which none of a Hub's servers has."""
    return name_of("notebook", namespace, name) if namespace == OF_HUB else name_of(namespace, name)


def owner_of(session: Session) -> str:
    """The owner of a session, in words: `Notebook team-a/ada`."""
    kind, *rest = session.owned_by.split("/")
    return f"{kind} {'/'.join(filter(None, rest[:2]))}"
