"""Which image each session is to be on: the newest that counts, one that somebody named, or one of a rollout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition

from cachetools import TTLCache, cached
from sqlalchemy import Engine

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.migrations.planning.rollout import ImageKey, RolloutStatus
from flows.migrations.rollouts.store import Rollouts
from flows.publishing import evidence
from flows.publishing.signatures import Publications, Refusal
from flows.sessions.model import Session

# Seconds for which the newest image of a profile is remembered while sessions are moved.
_NEWEST_SECONDS = 10


@dataclass(frozen=True)
class Targets:
    """The images that sessions are to be on.

    Attributes:
        images: profile and release → digest.
        refused: profile and release → why the image that there is doesn't count.
    """

    images: Mapping[ImageKey, str]
    refused: Mapping[ImageKey, Refusal]


class TargetFinder:
    """Finds the images that sessions are to be on.

    Args:
        settings: those in force.
        database: has the rollouts and what was published.
        only_begun: no other image counts than those whose rollouts have begun.
    """

    def __init__(self, settings: Settings, database: Engine, *, only_begun: bool = False) -> None:
        self._settings, self._only_begun = settings, only_begun
        self._rollouts, self._publications = Rollouts(database), Publications(settings, database)
        # Of the sessions that are moved at the same time, one asks the registry for all.
        self._newest = cached(TTLCache[ImageKey, str](1000, _NEWEST_SECONDS), condition=Condition())(self._published)

    def find(self, sessions: Iterable[Session], to: str = "") -> Targets:
        """The image for each profile of each release that these sessions have.

        Args:
            sessions: those that may be moved.
            to: tag or digest of an image; empty: the newest one that counts.

        Raises:
            RefitError: `to` names no image, or one that isn't for any of these sessions.
        """
        if self._only_begun:
            begun = self.begun()
            refusals = self._publications.refusals(begun.values())
            answers: Mapping[ImageKey, str | Refusal] = {
                key: refusals.get(image, image) for key, image in begun.items()
            }
        elif to:
            answers = targets(sessions, to, self._settings)
        else:
            answers = self._publications.current({image_key(session) for session in sessions})
        return Targets(
            {key: answer for key, answer in answers.items() if isinstance(answer, str)},
            {key: answer for key, answer in answers.items() if isinstance(answer, Refusal)},
        )

    def require(self, image: str) -> None:
        """Raise `NotPublished` where an image doesn't count."""
        self._publications.require(image)

    def begun(self) -> dict[ImageKey, str]:
        """The images whose rollouts have begun and aren't over."""
        going_on = (RolloutStatus.running, RolloutStatus.paused)
        begun = (rollout for rollout in self._rollouts.all().values() if rollout.way in going_on)
        return {(rollout.profile, rollout.release): rollout.image for rollout in begun}

    def superseded(self, session: Session, image: str) -> bool:
        """Whether a newer image than this one has been published for a session; it may be known seconds later."""
        if self._only_begun:  # a newer one that nobody has begun isn't waited for
            return False
        return self._newest(*image_key(session)) not in (image, "")

    def forget(self) -> None:
        """Ask the registry anew, lest what it said before a plan make that plan's own images seem superseded."""
        self._newest.cache_clear()

    def _published(self, profile: str, release: str) -> str:
        """The newest image of a profile; empty: nobody can tell just now, or there is none that counts."""
        with suppress(RefitError):
            return self._publications.newest(profile, release) or ""
        return ""


def targets(sessions: Iterable[Session], to: str, settings: Settings) -> Mapping[ImageKey, str]:
    """The digest that each profile of each release is to be on.

    Raises:
        NotPublished: `to` names an image that doesn't count.
        RefitError: `to` names no image, or one of another profile or release.
    """
    registry, pairs = Registry(settings), {(session.profile, session.release) for session in sessions}
    publications = Publications(settings, registry=registry)
    if not to:
        images = publications.current(pairs)
        return {key: digest for key, digest in images.items() if isinstance(digest, str)}
    image = evidence.find(registry, to)
    labels = registry.config(settings.repository, image).get("config", {}).get("Labels") or {}
    made_for = (labels.get("io.refit.profile", ""), labels.get("io.refit.release", ""))
    if pairs and made_for not in pairs:
        raise RefitError(
            f"The image {to!r} is not for any of these sessions.",
            why=f"It is {made_for[0]} of release {made_for[1]}." if all(made_for) else "`refit build` didn't make it.",
            hint="choose an image of the profile and release that the session has; `refit session list` shows them.",
        )
    publications.require(image.digest)
    return {made_for: image.digest}


def image_key(session: Session) -> ImageKey:
    """The profile and release that a session has."""
    return session.profile, session.release


def has_other_image(session: Session, images: Mapping[ImageKey, str]) -> bool:
    """Whether a session is to be on another image than it is."""
    return images.get(image_key(session), session.image) != session.image
