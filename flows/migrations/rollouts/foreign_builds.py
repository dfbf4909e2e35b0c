"""Sessions and the builds of people's own recipes: whether a session may have its next image, and by whom that is.

Nobody vouches for such a recipe but the person who wrote it, and it may change after somebody has started a session of
it. A name carries no trust: it is given back, taken by others, dropped by the catalog. So the makers of both images
decide, the one that a session has and the one that it is to have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Engine

from flows.catalog import load
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.migrations.planning.rollout import ImageKey, Reason
from flows.publishing.makers import Makers
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.sessions.model import Session
from flows.sessions.people import rights
from flows.sessions.store import Store


@dataclass(frozen=True)
class Foreign:
    """The next image of a session was made by the own recipe of a person who isn't its owner, or can't come to it.

    Attributes:
        by: that person; empty: it is its owner's, or of the catalog.
        obstacle: why it doesn't get that image; none: it does, once its owner agrees.
    """

    by: str
    obstacle: Reason | None = None


NOBODYS = Foreign("")


class ForeignBuilds:
    """Judges sessions again and again."""

    def __init__(self, settings: Settings, database: Engine) -> None:
        self._settings, self._profiles, self._store = settings, OwnProfiles(database), Store(database)
        self._makers = Makers(settings, database)

    def judge(self, sessions: Iterable[Session], images: Mapping[ImageKey, str]) -> Mapping[str, Foreign]:
        """Session → the judgement on its next image; those are missing that have it already, or are to have none.

        Args:
            sessions: those that may be moved, whosever they are.
            images: the image that each profile of each release is to be on.
        """
        next_images = [(one, images.get((one.profile, one.release), "")) for one in sessions]
        going = [(one, new) for one, new in next_images if new not in ("", one.image)]
        if not going:
            return {}
        makers = self._makers.of({image: one.profile for one, new in going for image in (one.image, new)})
        vouched = self._vouched() if any(makers[new] == "" != makers[one.image] for one, new in going) else ()
        own = {one.profile for one, new in going if makers[new]}
        profiles = {stem: self._profiles.find(stem) for stem in own}
        owners, accounts = self._store.owners(), rights.last(self._settings).rights.accounts
        judged = dict[str, Foreign]()
        for session, new in going:
            person: str | None = owners.get(session.name, "") if accounts is not None else ""
            account = (accounts or {}).get(person or "")
            judged[session.name] = foreign(
                None if session.owned_by else person,
                account.groups if account else (),
                profiles.get(session.profile),
                (makers[session.image], makers[new]),
                vouched=(session.profile, session.release) in vouched,
            )
        return judged

    def of(self, session: Session, image: str) -> Foreign:
        """The judgement on one session that is to have this image."""
        judged = self.judge([session], {(session.profile, session.release): image})
        return judged.get(session.name, NOBODYS)

    def _vouched(self) -> frozenset[ImageKey]:
        """The profiles and releases of the catalog of today; none if it can't be read."""
        try:
            releases = load.load_catalog(self._settings.catalog).releases.values()
        except RefitError:
            return frozenset()
        return frozenset((profile.stem, profile.release) for release in releases for profile in release.profiles)


def foreign(
    person: str | None,
    groups: Iterable[str],
    own: OwnProfile | None,
    makers: tuple[str | None, str | None],
    *,
    vouched: bool,
) -> Foreign:
    """The judgement on one session. Pure.

    Args:
        person: its owner; empty: it is an operator's; none: it is kept by others, and nobody here knows whose it is.
        groups: those of its owner.
        own: the profile of a person's own that has the name of its profile; none: nobody has that name.
        makers: the persons who made its image and the one that it is to have; empty: the catalog's; none: unknown.
        vouched: whether the catalog of today has its profile.
    """
    maker, next_maker = makers
    if next_maker is None:
        return Foreign("", Reason.unknown_maker)
    if not next_maker:
        if vouched or maker == "":
            return NOBODYS
        return Foreign("", Reason.other_maker if maker else Reason.unknown_maker)
    by = "" if person in ("", next_maker) else next_maker
    if maker != next_maker:
        return Foreign(by, Reason.unknown_maker if maker is None else Reason.other_maker)
    if by and not (own and own.owner == by and own.may_be_started_by(person or "", groups)):
        return Foreign(by, Reason.not_offered)
    return Foreign(by)
