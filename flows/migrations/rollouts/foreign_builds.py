"""Sessions on the own profiles of other people: whether they may have its next build, and by whom that is.

Nobody vouches for such a recipe but the person who wrote it, and it may change after somebody has started a session of
it. So its next build comes only while it is offered to the session's owner, from the person who made the image that the
session has. The name of a profile that was given back may be another person's by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Engine

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.personal_builds import OWNER_LABEL
from flows.images.registry import Registry
from flows.migrations.planning.rollout import ImageKey, Reason
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.sessions.model import Session
from flows.sessions.people import rights
from flows.sessions.store import Store


@dataclass(frozen=True)
class Foreign:
    """The profile of a session is a person's own, and not its owner's.

    Attributes:
        by: that person; empty: it is its owner's, or an operator's session.
        obstacle: why it doesn't get the next build; none: it does, once its owner agrees.
    """

    by: str
    obstacle: Reason | None = None


NOBODYS = Foreign("")


class ForeignBuilds:
    """Judges sessions again and again."""

    def __init__(self, settings: Settings, database: Engine) -> None:
        self._settings, self._profiles, self._store = settings, OwnProfiles(database), Store(database)
        self._makers: dict[str, str | None] = {}

    def judge(self, sessions: Iterable[Session], images: Mapping[ImageKey, str]) -> Mapping[str, Foreign]:
        """Session → what keeps it from builds of other people; those of the catalog's profiles are missing.

        Args:
            sessions: those that may be moved.
            images: the image that each profile of each release is to be on.
        """
        stems = self._profiles.owners()
        concerned = [one for one in sessions if one.profile in stems and not one.owned_by]
        if not concerned:
            return {}
        profiles = {stem: self._profiles.find(stem) for stem in {one.profile for one in concerned}}
        owners, accounts = self._store.owners(), rights.last(self._settings).rights.accounts
        judged = dict[str, Foreign]()
        for session in concerned:
            new = images.get((session.profile, session.release), "")
            if new and (own := profiles[session.profile]):
                person = owners.get(session.name, "") if accounts is not None else ""
                groups = accounts[person].groups if accounts and person in accounts else frozenset[str]()
                makers = self._maker(session.image), self._maker(new)
                judged[session.name] = foreign(own, person, groups, *makers)
        return judged

    def by(self, session: Session) -> str:
        """Another person whose own profile a session may have; empty: it has one of the catalog, or of its owner."""
        owner, person = self._profiles.owners().get(session.profile, ""), self._store.owners().get(session.name, "")
        return owner if person != owner and rights.last(self._settings).rights.accounts is not None else ""

    def _maker(self, image: str) -> str | None:
        """The person of whose own recipe an image was made; empty: it is of the catalog; none: nobody can tell."""
        if self._makers.get(image) is None:
            self._makers[image] = None
            with suppress(RefitError):
                registry = Registry(self._settings)
                manifest = registry.manifest(registry.repository, image, recall=True)
                labels = registry.config(registry.repository, manifest)["config"].get("Labels") or {}
                self._makers[image] = str(labels.get(OWNER_LABEL, ""))
        return self._makers[image]


def foreign(own: OwnProfile, person: str, groups: Iterable[str], maker: str | None, next_maker: str | None) -> Foreign:
    """The judgement on one session. Pure.

    Args:
        own: the profile of a person's own that has the name of its profile.
        person: its owner; empty: it is an operator's.
        groups: those of its owner.
        maker: the person who made its image; empty: it is of the catalog; none: nobody can tell.
        next_maker: the same of the image that it is to be on.
    """
    if next_maker == "":
        return NOBODYS
    by = "" if person in ("", own.owner) else own.owner
    if not maker == next_maker == own.owner:
        return Foreign(by, Reason.other_maker)
    if by and not own.may_be_started_by(person, groups):
        return Foreign(by, Reason.not_offered)
    return Foreign(by)
