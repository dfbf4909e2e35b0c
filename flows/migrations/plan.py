"""Which sessions move, which stay, and why. Pure: what is known goes in, one decision per session comes out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from flows.catalog.model import Access
from flows.errors import RefitError, UnknownName
from flows.sessions.model import Session

ImageKey = tuple[str, str]
"""Profile (the stem of its tag) and release."""


class Action(StrEnum):
    """What happens to one session."""

    migrate = "migrate"
    skip = "skip"


class Reason(StrEnum):
    """Why a session stays where it is."""

    current = "it is on this image already"
    stopped = "it is stopped; it keeps its image until it runs and is migrated"
    no_image = "its release has no image of its profile"
    unfinished = "its last move is unfinished; `refit migrate resume` ends it"
    held = "its last move is held; `refit migrate history` says what to do"


@dataclass(frozen=True)
class Candidate:
    """A session as it is now; `obstacle` is what an earlier move left behind, if anything."""

    session: Session
    running: bool
    obstacle: Reason | None = None


@dataclass(frozen=True)
class Decision:
    """One line of a plan: `old` and `new` are image digests, `reason` is set where the session is skipped."""

    session: str
    action: Action
    old: str
    new: str
    reason: Reason | None = None


def plan(candidates: Iterable[Candidate], targets: Mapping[ImageKey, str]) -> tuple[Decision, ...]:
    """Decide for every session, by name.

    A stopped session is left alone: an image has to prove itself in a session before the old one is given up,
    and starting what its owner stopped is not ours to do.

    Args:
        candidates: the sessions that are asked for.
        targets: the digest that each profile of each release is to be on.
    """
    ordered = sorted(candidates, key=lambda candidate: candidate.session.name)
    return tuple(_decide(candidate, targets) for candidate in ordered)


def _decide(candidate: Candidate, targets: Mapping[ImageKey, str]) -> Decision:
    session = candidate.session
    new = targets.get((session.profile, session.release), "")
    reason = _why_not(candidate, new)
    return Decision(session.name, Action.skip if reason else Action.migrate, session.image, new, reason)


def _why_not(candidate: Candidate, new: str) -> Reason | None:
    if candidate.obstacle:
        return candidate.obstacle
    if not new:
        return Reason.no_image
    if candidate.session.image == new:
        return Reason.current
    return None if candidate.running else Reason.stopped


def plan_named(
    name: str,
    candidates: Iterable[Candidate],
    targets: Mapping[ImageKey, str],
    *,
    deleted: Collection[str] = (),
) -> Decision:
    """Decide for the one session that a person named; what can't be done is an error here.

    Args:
        deleted: names of sessions that are gone while their homes were kept.

    Raises:
        RefitError: there is no such session, it was deleted, it is stopped, its image doesn't exist or is the one
            that it has, or its last move has not ended.
    """
    known = {candidate.session.name: candidate for candidate in candidates}
    if name in deleted and name not in known:
        raise RefitError(
            f"The session {name!r} was deleted.",
            why="Its home was kept, but there is nothing that could be moved.",
            fix=f"`refit session create {name} …` gives the home a session again.",
        )
    if name not in known:
        raise UnknownName("session", name, known)
    decision = _decide(known[name], targets)
    if decision.reason:
        session = known[name].session
        raise RefitError(
            f"The session {name!r} can't be moved: {decision.reason}.",
            why=f"Profile {session.profile}, release {session.release}, image {session.image}.",
            fix=_FIXES.get(decision.reason, "").format(name=name, release=session.release),
        )
    return decision


_FIXES = {
    Reason.stopped: "`refit session start {name}`, then migrate it.",
    Reason.no_image: "`refit build {release}` makes it.",
    Reason.unfinished: "`refit migrate resume`.",
    Reason.held: "`refit migrate history {name}`.",
}


def moved(session: Session, image: str, access: Access | None) -> Session:
    """The session on another image, in its next container.

    Args:
        session: as it is.
        image: digest of the other image.
        access: how the IDE in that is reached; none: as before.

    Raises:
        RefitError: the one has an IDE to reach and the other has not.
    """
    access = access or session.access
    if bool(access.port) != bool(session.port):
        raise RefitError(
            f"The session {session.name!r} can't be moved to {image}.",
            why="That image has an IDE, and the session has no port on which it could be reached."
            if access.port
            else "That image has no IDE, and the session has one.",
            fix=f"`refit session rm {session.name}` keeps its home; then create it anew.",
        )
    return replace(session, image=image, generation=session.generation + 1, access=access)
