"""Planning a migration of the sessions of this machine: what is known of them, and what they are to be moved to."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Engine

from flows.catalog.load import load_catalog
from flows.database import now, open_database
from flows.errors import RefitError
from flows.images.registry import Registry
from flows.migrations import waves
from flows.migrations.journal import Journal, Move
from flows.migrations.move import FINAL, State
from flows.migrations.plan import plan, plan_named
from flows.migrations.rollout import Candidate, Decision, ImageKey, Reason, Rollout
from flows.policy import SessionPolicy
from flows.publishing import evidence
from flows.publishing.publish import current
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from flows.sessions.probes import Seen, look_at_all
from flows.sessions.wishes import Wish, Wishes
from flows.settings import Settings


def plan_migration(names: Sequence[str], to: str, settings: Settings, origin: str = "") -> tuple[Decision, ...]:
    """One decision per session: what it moves to and when, or why it stays.

    Who names a session says that it may be interrupted. All others are looked at first, which doesn't count as work.

    Args:
        names: names of sessions; empty: all.
        to: tag or digest of an image to move to; empty: the newest tested image of each session's profile.
        settings: those in force.
        origin: tag or digest of an image: only the sessions that have it; empty: all.

    Raises:
        RefitError: there is no such session or image, or a session that was named can't be moved.
    """
    database = open_database(settings.database)
    sessions = Sessions.open(settings, database)
    seen = {} if names else {each.session: each for each in look_at_all(settings, sessions)}
    candidates = _candidates(sessions, database, settings, seen)
    known = {candidate.session.name for candidate in candidates}
    if origin:
        image = evidence.find(Registry(settings), origin).digest
        candidates = tuple(candidate for candidate in candidates if candidate.session.image == image)
    asked = [candidate for candidate in candidates if not names or candidate.session.name in names]
    digests = targets([candidate.session for candidate in asked], to, settings)
    policy = settings.migration
    canary = waves.canary(_moving(asked, digests), policy.waves)
    rollout = Rollout(now(), digests, policy, settings.keep_state, canary=canary)
    if not names:
        return plan(candidates, rollout)
    deleted = sessions.store.homes().keys() - known
    return tuple(plan_named(name, candidates, rollout, deleted=deleted) for name in dict.fromkeys(names))


def _moving(candidates: Iterable[Candidate], digests: Mapping[ImageKey, str]) -> list[tuple[str, str]]:
    """Those that have another image than they are to have, and their new one."""
    found = [(each.session, digests.get((each.session.profile, each.session.release), "")) for each in candidates]
    return [(session.name, new) for session, new in found if new and new != session.image]


def _candidates(
    sessions: Sessions, database: Engine, settings: Settings, seen: Mapping[str, Seen]
) -> tuple[Candidate, ...]:
    last, wishes, found = Journal(database).latest(), Wishes(database).all(), sessions.all()
    policies = _policies(settings) if found else {}
    return tuple(
        Candidate(
            session=status.session,
            running=status.running is Running.running,
            obstacle=_obstacle(last.get(status.session.name)),
            host=platform.node(),
            policy=policies.get((status.session.profile, status.session.release), settings.migration.sessions),
            wish=wishes.get(status.session.name, Wish()),
            seen=seen.get(status.session.name),
        )
        for status in found
    )


def _policies(settings: Settings) -> Mapping[ImageKey, SessionPolicy]:
    releases = load_catalog(settings.catalog).releases.values()
    profiles = [profile for release in releases for profile in release.profiles]
    return {(p.stem, p.release): p.migration.over(settings.migration.sessions) for p in profiles}


def _obstacle(move: Move | None) -> Reason | None:
    if move is None or (move.state in FINAL and move.state is not State.held):
        return None
    return Reason.held if move.state is State.held else Reason.unfinished


def targets(sessions: Iterable[Session], to: str, settings: Settings) -> Mapping[ImageKey, str]:
    """The digest that each profile of each release is to be on.

    Raises:
        RefitError: `to` names no image, or one of another profile or release.
    """
    registry, wanted = Registry(settings), {(session.profile, session.release) for session in sessions}
    if not to:
        found = {key: current(*key, registry) for key in wanted}
        return {key: digest for key, digest in found.items() if digest}
    image = evidence.find(registry, to)
    labels = registry.config(settings.repository, image).get("config", {}).get("Labels") or {}
    made_for = (labels.get("io.refit.profile", ""), labels.get("io.refit.release", ""))
    if wanted and made_for not in wanted:
        raise RefitError(
            f"The image {to!r} is not for any of these sessions.",
            why=f"It is {made_for[0]} of release {made_for[1]}." if all(made_for) else "`refit build` didn't make it.",
            fix="choose an image of the profile and release that the session has; `refit session list` shows them.",
        )
    return {made_for: image.digest}
