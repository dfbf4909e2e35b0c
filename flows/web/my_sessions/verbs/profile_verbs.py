"""Verbs about profiles of one's own: give a recipe, have it built, read what came of it, and offer it to others."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pydantic import AwareDatetime, Field

from flows.authoring.own import reading
from flows.authoring.own.catalog import Wish
from flows.catalog.load import newest_release
from flows.core.errors import UnknownName
from flows.core.formatting import printable
from flows.publishing import own_build_log
from flows.publishing.own_build_requests import BuildRequests, BuildState, BuildStatus
from flows.publishing.own_build_results import BuildResults
from flows.publishing.own_profiles import NotYours, OwnProfile, OwnProfiles
from flows.releases import own_profiles as recipes
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.verbs.context import Nothing, Parameters, Verb, VerbContext
from flows.web.people import own_offers
from flows.web.people.scopes import Scope

_LONGEST, _LONGEST_LIST = 200, 4000
UNDER_WAY = frozenset({BuildState.waiting, BuildState.building})
_PROBLEM = 2000  # characters
_ENCODED = reading.ARCHIVE * 4 // 3 + 4  # characters of an archive in base64
_NAME = Field(min_length=1, max_length=_LONGEST, description="Name of the bundle, or of its profile.")


class ToBuild(Parameters):
    """A recipe, and what is to be made of it."""

    name: str = Field(max_length=_LONGEST, description="Name of the bundle: a-z and 0-9.", title="Name")
    archive: str = Field(
        max_length=_ENCODED, description="Its folder as tar, tar.gz or zip, in base64: 4 MB at most.", title="Archive"
    )
    ide: str = Field("jupyter", max_length=_LONGEST, description="IDE that opens.", title="IDE")
    os: str = Field("deb12", max_length=_LONGEST, description="Operating system of the catalog.", title="System")
    release: str = Field("", max_length=20, description="The release; empty: the newest one.", title="Release")


class Named(Parameters):
    """A profile of one's own."""

    name: str = _NAME


class FromLine(Named):
    """A part of a log."""

    start: int = Field(0, ge=0, description="Where the part begins, as `next` of the part before says.")


class ToOffer(Named):
    """The people to whom a profile is offered, from now on, and nobody else."""

    groups: str = Field("", max_length=_LONGEST_LIST, description="Groups of the Hub, one a line.", title="Groups")
    people: str = Field("", max_length=_LONGEST_LIST, description="People, one a line.", title="People")


class Shown(Parameters):
    """The results that somebody has been shown."""

    until: AwareDatetime = Field(description="The latest `news` of these.", title="Until")


class ToRemove(Named):
    """A profile whose name is given back."""

    confirm: str = Field("", max_length=_LONGEST, description="Its name once more.", title="Its name")


@dataclass(frozen=True)
class Mine:
    """A profile of one's own.

    Attributes:
        name: of its bundle.
        profile: stem of its tags, with which sessions start.
        release: on which it stands.
        given: when its recipe was given last.
        groups, people: to whom it is offered.
        state: how its newest build is.
        before: how many builds come first, while it waits.
        at: when its build was asked for, begun or ended.
        problem: why that failed; empty: it didn't.
        news: when it ended, if you haven't been shown that; none: you have, or it hasn't ended.
    """

    name: str
    profile: str
    release: str
    given: datetime
    groups: tuple[str, ...]
    people: tuple[str, ...]
    state: BuildState
    before: int
    at: datetime | None
    problem: str
    news: datetime | None = None


@dataclass(frozen=True)
class BuildLog:
    """A part of the log of a build: lines, where the next part begins, and how the build is."""

    text: str
    next: int
    state: BuildState
    problem: str


def _view(context: VerbContext, own: OwnProfile, build: BuildStatus) -> Mine:
    problem = own_build_log.for_owner(context.settings, build.problem[:_PROBLEM])
    about = own.bundle, own.profile, own.release, own.at, own.offered, own.people
    return Mine(*about, build.state, build.before, build.at, problem, build.news)


def _views(context: VerbContext, every: Iterable[OwnProfile]) -> tuple[Mine, ...]:
    own = {profile.bundle: profile for profile in every}
    builds = BuildRequests(context.database).statuses(own)
    return tuple(_view(context, profile, builds[name]) for name, profile in own.items())


def _list(context: VerbContext, caller: Caller, _: str, __: Nothing) -> tuple[Mine, ...]:
    return _views(context, OwnProfiles(context.database).all(caller.person))


def _seen(context: VerbContext, caller: Caller, _: str, shown: Shown) -> tuple[Mine, ...]:
    BuildResults(context.database).mark_seen(caller.person, shown.until)
    return _list(context, caller, "", Nothing())


def _own(context: VerbContext, caller: Caller, name: str) -> OwnProfile:
    """A profile of the caller's; others look as if they weren't there."""
    try:
        return OwnProfiles(context.database).get(name, caller.person)
    except (UnknownName, NotYours):
        raise Problem(
            Code.unknown,
            f"You have no profile {name!r} of your own.",
            hint="`GET own-profiles` lists those that you have.",
        ) from None


def _one(context: VerbContext, own: OwnProfile) -> Mine:
    [view] = _views(context, [own])
    return view


def _build(context: VerbContext, caller: Caller, _: str, asked: ToBuild) -> Mine:
    try:
        content = base64.b64decode(asked.archive, validate=True)
    except ValueError:
        raise Problem(Code.invalid, "The archive isn't in base64.") from None
    release = asked.release or newest_release(context.settings.catalog)
    with context.one_of(context.composing):
        files = reading.from_archive(io.BytesIO(content))
        wish = Wish(asked.name, caller.person, asked.ide, asked.os, release)
        return _one(context, recipes.ask(wish, files, context.settings))


def _log(context: VerbContext, caller: Caller, _: str, asked: FromLine) -> BuildLog:
    own = _own(context, caller, asked.name)
    # The state comes first: a build that ends meanwhile is read to its end by the next question.
    view = _one(context, own)
    text, further = own_build_log.read(context.settings, own.owner, own.bundle, asked.start)
    return BuildLog(text, further, view.state, view.problem)


def _offer(context: VerbContext, caller: Caller, _: str, asked: ToOffer) -> Mine:
    own = _own(context, caller, asked.name)
    groups, people = _lines(asked.groups), _lines(asked.people)
    if not (groups or people):
        raise Problem(Code.invalid, "No person or group was named to offer it to.", hint="name groups or people.")
    mine = context.allowance.groups_of(caller.person, None)
    if foreign := own_offers.not_to_offer(own, groups, mine, operator=caller.admin):
        raise Problem(
            Code.not_yours,
            f"You are in no group {', '.join(foreign)}.",
            why="People offer profiles to groups that they are in; those who administer the Hub, to all.",
            hint="offer it to people by their names, or ask somebody who administers the Hub.",
        )
    vouched = {*own.vouched, *({*groups} - {*mine} if caller.admin else ())}
    return _one(context, OwnProfiles(context.database).offer(own.bundle, own.owner, groups, people, vouched))


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if wrong := [line for line in lines if not line.isprintable()]:
        raise Problem(Code.invalid, f"{printable(wrong[0])!r} is no name.")
    return lines


def _withdraw(context: VerbContext, caller: Caller, _: str, asked: Named) -> Mine:
    own = _own(context, caller, asked.name)
    return _one(context, OwnProfiles(context.database).offer(own.bundle, own.owner, ()))


def _remove(context: VerbContext, caller: Caller, _: str, asked: ToRemove) -> tuple[Mine, ...]:
    own = _own(context, caller, asked.name)
    if asked.confirm != asked.name:
        raise Problem(
            Code.unconfirmed,
            f"{own.bundle!r} was not removed: that has to be confirmed.",
            why="Its recipe goes, and somebody else may take its name. Sessions on its images go on.",
            hint="give the name once more as `confirm`.",
        )
    OwnProfiles(context.database).forget(own.bundle, own.owner)
    BuildRequests(context.database).drop(own.bundle)
    return _list(context, caller, "", Nothing())


_ALL = tuple[Mine, ...]
VERBS = (
    Verb("own-profiles", "GET", "/own-profiles", Scope.read, "List your own profiles.", _list, gives=_ALL),
    Verb(
        "build",
        "POST",
        "/own-profiles/build",
        Scope.profiles,
        "Give the recipe of a profile of your own, and have it built when its turn comes.",
        _build,
        ToBuild,
        Mine,
        later=True,
        most=_ENCODED + 4096,
    ),
    Verb(
        "own-profiles-seen",
        "POST",
        "/own-profiles/seen",
        Scope.profiles,
        "Say that you have been shown how builds of yours ended, up to a moment: they are news no more.",
        _seen,
        Shown,
        _ALL,
    ),
    Verb(
        "build-log",
        "GET",
        "/own-profiles/log",
        Scope.read,
        "Read on in the log of the last build of a profile of your own.",
        _log,
        FromLine,
        BuildLog,
    ),
    Verb(
        "offer",
        "POST",
        "/own-profiles/offer",
        Scope.profiles,
        "Offer a profile of your own to these groups and people, and to nobody else.",
        _offer,
        ToOffer,
        Mine,
    ),
    Verb(
        "withdraw",
        "POST",
        "/own-profiles/withdraw",
        Scope.profiles,
        "Offer a profile of your own to nobody any more; sessions that others have on it go on.",
        _withdraw,
        Named,
        Mine,
    ),
    Verb(
        "remove-profile",
        "POST",
        "/own-profiles/remove",
        Scope.profiles,
        "Give the name of a profile of your own back; sessions on its images go on.",
        _remove,
        ToRemove,
        _ALL,
    ),
)
