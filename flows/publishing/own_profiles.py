"""Profiles of people's own, as the database has them: whose each name is, its recipe, and who else may start it.

A name is taken by a row, so that of two people who want one, one gets it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import uuid4

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Instant, Table, now, write_rows
from flows.core.errors import RefitError, UnknownName
from flows.core.leases import held
from flows.core.settings.personal_builds import PersonalBuilds
from flows.publishing import own_build_log_copies, own_build_results

_DAY = timedelta(hours=24)
_KILLED = "Its process was killed."  # a build of which nobody knows how long it went on
_OWNER = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")  # a part of a repository's name
_LONGEST_OWNER = 64
_LONGEST_OFFER = 10_000  # characters


class OwnBundleRow(Table):
    """A bundle of a person's own, with the profile that stands on it."""

    __tablename__ = "own_bundles"

    name: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(index=True)
    profile: Mapped[str] = mapped_column(unique=True)
    release: Mapped[str]
    recipe: Mapped[str]
    offered: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)


class OwnBuildRow(Table):
    """A build of such a bundle, for the limits of its owner."""

    __tablename__ = "own_builds"

    id: Mapped[str] = mapped_column(primary_key=True)
    bundle: Mapped[str]
    owner: Mapped[str] = mapped_column(index=True)
    began: Mapped[datetime] = mapped_column(Instant)
    ended: Mapped[datetime | None] = mapped_column(Instant)
    problem: Mapped[str]


@dataclass(frozen=True)
class OwnProfile:
    """A profile of a person's own.

    Attributes:
        bundle: the name that is taken.
        owner: the person.
        profile: the stem of its tags.
        release: the one whose base and bundle it stands on.
        files: path below the bundle's folder → content.
        offered: groups whose members may start it, too.
        people: people who may start it, too.
        at: when its recipe was last given (UTC).
        vouched: those of the groups to which an operator has offered it: their owner needn't be in them.
    """

    bundle: str
    owner: str
    profile: str
    release: str
    files: Mapping[str, bytes]
    offered: tuple[str, ...]
    at: datetime
    people: tuple[str, ...] = ()
    vouched: tuple[str, ...] = ()

    def may_be_started_by(self, person: str, groups: Iterable[str]) -> bool:
        """Whether somebody who is in these groups may start sessions from it."""
        return person == self.owner or person in self.people or not {*self.offered}.isdisjoint(groups)


@dataclass(frozen=True)
class OfferedTo:
    """To whom a bundle is offered; attributes as of `OwnProfile`."""

    bundle: str
    owner: str
    groups: tuple[str, ...]
    people: tuple[str, ...]
    vouched: tuple[str, ...]


@dataclass(frozen=True)
class LastBuild:
    """The last build of a bundle: when it began and ended (UTC), and why it failed; empty: it didn't."""

    began: datetime
    ended: datetime | None
    problem: str


class NotYours(RefitError):
    """A name is another person's."""

    exit_code = 3


class LimitReached(RefitError):
    """A person has used what their builds may take."""

    exit_code = 4


class RoomUsed(LimitReached):
    """A person's images have as many bytes as they may; waiting for another day doesn't help."""


def check_owner(owner: str) -> str:
    """`owner`, if a repository of images can be called so.

    Raises:
        RefitError: it can't.
    """
    if not _OWNER.fullmatch(owner) or len(owner) > _LONGEST_OWNER:
        raise RefitError(
            f"{owner!r} can have no profiles of their own.",
            why=f"Images lie in a repository of that name: small letters and digits, with single dots, hyphens and "
            f"underscores between them, {_LONGEST_OWNER} characters at most.",
            hint="name another account.",
        )
    return owner


def repository(settings_repository: str, owner: str) -> str:
    """The repository of a person's own images. Pure."""
    return f"{settings_repository}/people/{check_owner(owner)}"


_QUEUE, OF_OWNER = "own-build-of/", "own-builds-of/"


def queued(bundle: str) -> str:
    """The name of the lease that a build holds from the moment in which it waits for its turn. Pure."""
    return f"{_QUEUE}{bundle}"


class OwnProfiles:
    """The profiles of people's own that are on record."""

    def __init__(self, database: Engine) -> None:
        self.database = database

    def all(self, owner: str = "") -> tuple[OwnProfile, ...]:
        """All, or those of one person, by name."""
        chosen = select(OwnBundleRow).order_by(OwnBundleRow.name)
        with Session(self.database) as rows:
            records = rows.scalars(chosen.where(OwnBundleRow.owner == owner) if owner else chosen)
            return tuple(_read(row) for row in records)

    def owners(self) -> dict[str, str]:
        """Stem of each profile → whose it is."""
        with Session(self.database) as rows:
            return {row.profile: row.owner for row in rows.execute(select(OwnBundleRow.profile, OwnBundleRow.owner))}

    def offered(self) -> tuple[OfferedTo, ...]:
        """To whom those are offered that are offered to anybody; their recipes aren't read."""
        with Session(self.database) as rows:
            bundles = rows.execute(select(OwnBundleRow.name, OwnBundleRow.owner, OwnBundleRow.offered))
            offers = (OfferedTo(name, owner, *_read_offers(text)) for name, owner, text in bundles)
            return tuple(offer for offer in offers if offer.groups or offer.people)

    def people(self) -> dict[str, frozenset[str]]:
        """Each person who has built a profile of their own → the stems of those that they have now."""
        with Session(self.database) as rows:
            builders = set(rows.scalars(select(OwnBuildRow.owner).distinct()))
        stems: dict[str, set[str]] = {owner: set() for owner in builders}
        for stem, owner in self.owners().items():
            stems.setdefault(owner, set()).add(stem)
        return {owner: frozenset(of_owner) for owner, of_owner in sorted(stems.items())}

    def had_by(self, stems: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Stem → the people who have its name or have built it, also before they gave it back; the last builder first.

        Builds stay on record, so that a name nobody ever had is one of the catalog alone.
        """
        parts = {stem: stem.removeprefix("cuda-").split("-")[1:2] for stem in stems}
        bundles = {bundle for names in parts.values() for bundle in names}
        built = select(OwnBuildRow.bundle, OwnBuildRow.owner).where(OwnBuildRow.bundle.in_(bundles))
        latest = built.group_by(OwnBuildRow.bundle, OwnBuildRow.owner).order_by(func.max(OwnBuildRow.began).desc())
        taken = select(OwnBundleRow.name, OwnBundleRow.owner).where(OwnBundleRow.name.in_(bundles))
        with Session(self.database) as rows:
            pairs = [*map(tuple, rows.execute(taken)), *map(tuple, rows.execute(latest))]
        return {
            stem: tuple(dict.fromkeys(owner for bundle, owner in pairs if bundle in names))
            for stem, names in parts.items()
        }

    def find(self, name: str) -> OwnProfile | None:
        """The one of this name, or with this stem; none: there is none."""
        either = (OwnBundleRow.name == name) | (OwnBundleRow.profile == name)
        with Session(self.database) as rows:
            row = rows.scalars(select(OwnBundleRow).where(either)).first()
            return _read(row) if row else None

    def get(self, name: str, owner: str = "") -> OwnProfile:
        """The same.

        Raises:
            UnknownName: there is none.
            NotYours: it isn't the owner's that is named.
        """
        if (own := self.find(name)) is None:
            raise UnknownName("profile of a person's own", name, [profile.bundle for profile in self.all(owner)])
        if owner and own.owner != owner:
            raise NotYours(f"The profile {name!r} is not {owner}'s.", hint="`refit profile list` says whose it is.")
        return own

    def take(self, own: OwnProfile, limits: PersonalBuilds) -> None:
        """Write down a profile: its name is its owner's from now on.

        Raises:
            NotYours: the name is another person's.
            LimitReached: its owner has as many as they may.
        """

        def put(rows: Session) -> None:
            there = rows.get(OwnBundleRow, own.bundle)
            if there and there.owner != own.owner:
                raise NotYours(f"The name {own.bundle!r} is taken.", hint="choose another one: `--as NAME`.")
            of_owner = select(func.count()).select_from(OwnBundleRow).where(OwnBundleRow.owner == own.owner)
            if not there and (rows.scalar(of_owner) or 0) >= limits.profiles:
                raise LimitReached(
                    f"{own.owner} has {limits.profiles} profiles of their own, and may have no more.",
                    hint="`refit profile rm NAME` removes one; `personal_builds.profiles` is the limit.",
                )
            offered = there.offered if there else _offers(own.offered, own.people, own.vouched)
            recipe = json.dumps({path: base64.b64encode(text).decode() for path, text in own.files.items()})
            values = {"profile": own.profile, "release": own.release, "recipe": recipe, "at": own.at}
            rows.merge(OwnBundleRow(name=own.bundle, owner=own.owner, offered=offered, **values))

        write_rows(self.database, put)

    def offer(
        self,
        name: str,
        owner: str,
        groups: Iterable[str],
        people: Iterable[str] = (),
        vouched: Iterable[str] = (),
    ) -> OwnProfile:
        """Let these people and the members of these groups start it, and no others beside its owner; raises as `get`.

        Args:
            name: of the bundle or the profile.
            owner: the owner of the profile.
            groups: the groups whose members may start it.
            people: the people who may start it.
            vouched: those of the groups whose offer doesn't end when its owner leaves them.

        Raises:
            LimitReached: these are too many.
        """
        self.get(name, owner)
        if len(offered := _offers(groups, people, vouched)) > _LONGEST_OFFER:
            raise LimitReached("So many can't be named in an offer.", hint="offer it to a group that they are in.")

        def put(rows: Session) -> None:
            if row := rows.get(OwnBundleRow, self.get(name, owner).bundle):
                row.offered = offered

        write_rows(self.database, put)
        return self.get(name, owner)

    def end_offers(self, bundle: str, owner: str, groups: Collection[str]) -> tuple[str, ...]:
        """Offer it to these groups no longer; returns those of them to which it was offered until now."""

        def put(rows: Session) -> tuple[str, ...]:
            row = rows.get(OwnBundleRow, bundle)
            if row is None or row.owner != owner:  # its name was given back meanwhile
                return ()
            offered, people, vouched = _read_offers(row.offered)
            row.offered = _offers({*offered} - {*groups}, people, vouched)
            return tuple(group for group in offered if group in groups)

        return write_rows(self.database, put)

    def leave(self, person: str) -> None:
        """Somebody's account goes: their offers end, and those that others have made to them by name.

        Somebody who gets the same name later isn't the same person.
        """

        def put(rows: Session) -> None:
            for row in rows.scalars(select(OwnBundleRow)):
                groups, people, vouched = _read_offers(row.offered)
                if row.owner == person:
                    row.offered = _offers((), ())
                elif person in people:
                    row.offered = _offers(groups, {*people} - {person}, vouched)

        write_rows(self.database, put)

    def forget(self, name: str, owner: str) -> None:
        """Give the name back; sessions on its images go on. Raises as `get`."""
        bundle = self.get(name, owner).bundle

        def remove(rows: Session) -> None:
            rows.execute(delete(OwnBundleRow).where(OwnBundleRow.name == bundle))
            own_build_results.forget(rows, bundle)
            own_build_log_copies.forget(rows, bundle)

        write_rows(self.database, remove)

    def begin(self, bundle: str, owner: str, limits: PersonalBuilds) -> tuple[str, float]:
        """Note the begin of a build; returns its id, and the seconds that its owner has left.

        Raises:
            LimitReached: they have none, or have begun as many builds as they may.
        """
        build, moment = uuid4().hex, now()

        def put(rows: Session) -> float:
            recent = select(OwnBuildRow).where(OwnBuildRow.owner == owner, OwnBuildRow.began > moment - _DAY)
            builds = list(rows.scalars(recent))
            for killed in builds:  # a person has one build at a time, and this one holds their lease
                if killed.ended is None:
                    killed.ended, killed.problem = killed.began, _KILLED
            used = sum(((other.ended or moment) - other.began).total_seconds() for other in builds)
            remaining = 3600.0 * limits.hours_a_day - used
            if remaining <= 0 or len(builds) >= limits.builds_a_day:
                raise LimitReached(
                    f"{owner} has built {len(builds)} times in 24 hours, {used / 3600:.1f} h together.",
                    why=f"{limits.builds_a_day} builds and {limits.hours_a_day:g} hours are the limit.",
                    hint="wait, or ask for more: `personal_builds` in settings.yaml.",
                )
            rows.add(OwnBuildRow(id=build, bundle=bundle, owner=owner, began=moment, ended=None, problem=""))
            return remaining

        return build, write_rows(self.database, put)

    def end(self, build: str, problem: str = "") -> None:
        """Note the end of a build, and why it failed."""

        def put(rows: Session) -> None:
            if row := rows.get(OwnBuildRow, build):
                row.ended, row.problem = now(), problem

        write_rows(self.database, put)

    def builds(self) -> dict[str, bool]:
        """Bundle → whether its build has begun, of those that wait or are built now."""
        waiting = [name.removeprefix(_QUEUE) for name in held(self.database, _QUEUE)]
        last = self.last_builds()
        busy = {name.removeprefix(OF_OWNER) for name in held(self.database, OF_OWNER)}
        owners = {own.bundle: own.owner for own in self.all()}
        return {
            bundle: bundle in last and last[bundle].ended is None and owners.get(bundle) in busy for bundle in waiting
        }

    def last_builds(self) -> dict[str, LastBuild]:
        """Bundle → its last build."""
        with Session(self.database) as rows:
            every = rows.scalars(select(OwnBuildRow).order_by(OwnBuildRow.began))
            return {row.bundle: LastBuild(row.began, row.ended, row.problem) for row in every}


def _offers(groups: Iterable[str], people: Iterable[str], vouched: Iterable[str] = ()) -> str:
    every = set(groups)
    document = {"groups": sorted(every), "people": sorted(set(people)), "vouched": sorted(every.intersection(vouched))}
    return json.dumps(document)


def _read(row: OwnBundleRow) -> OwnProfile:
    files = {path: base64.b64decode(text) for path, text in json.loads(row.recipe).items()}
    groups, people, vouched = _read_offers(row.offered)
    return OwnProfile(row.name, row.owner, row.profile, row.release, files, groups, row.at, people, vouched)


def _read_offers(text: str) -> tuple[tuple[str, ...], ...]:
    """Groups, people, and the groups for which an operator vouches."""
    document = json.loads(text)
    if isinstance(document, list):  # as it was before there were offers to single people
        document = {"groups": document}
    return tuple(tuple(document.get(kind, ())) for kind in ("groups", "people", "vouched"))
