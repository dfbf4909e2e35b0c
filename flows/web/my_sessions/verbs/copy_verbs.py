"""Verbs that look into the snapshots of one's sessions, and take from them: differences, single files, new sessions."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field, JsonValue

from flows.core.formatting import on_a_line
from flows.migrations.snapshots import clone_session, snapshot_actions
from flows.migrations.snapshots.clone_session import Wish
from flows.sessions.wishes import PreferenceStore
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.session_view import MySession
from flows.web.my_sessions.verbs import person_limit_verbs
from flows.web.my_sessions.verbs.context import EVERY, ONE, Parameters, Verb, VerbContext
from flows.web.my_sessions.verbs.create_verbs import SERVER_NAME
from flows.web.my_sessions.verbs.own_verbs import Chosen, check_offered
from flows.web.people import names
from flows.web.people.scopes import Scope
from flows.web.people.servers import Servers

_LONGEST, _LONGEST_PATHS = 200, 8000
# Differences that are told, at most.
MOST = 500
_HIDDEN: dict[str, JsonValue] = {"hidden": True}


class ToCompare(Parameters):
    """The snapshot that a session is compared with."""

    snapshot: str = Field(min_length=1, max_length=_LONGEST, description="Name or id of the snapshot.")
    contents: bool = Field(False, description="Whether files of the same size and time are read, too.")


class ToBringBack(Parameters):
    """Files of a snapshot."""

    snapshot: str = Field(min_length=1, max_length=_LONGEST, description="Name or id of the snapshot.")
    paths: str = Field(
        min_length=1, max_length=_LONGEST_PATHS, description="Files and folders of the home, one a line.", title="Files"
    )
    to: str = Field(
        "", max_length=_LONGEST, description="A new folder of the home for them; empty: into place.", title="New folder"
    )


class ToClone(Parameters):
    """Another session, which begins with a copy of a home."""

    server: str = Field(pattern=SERVER_NAME, min_length=1, description="Its name for you.", title="Name of the copy")
    snapshot: str = Field(
        "",
        max_length=_LONGEST,
        description="Name or id of the snapshot that it begins with; empty: the home as it is now.",
        json_schema_extra=_HIDDEN,
    )
    profile: str = Field(
        "", max_length=_LONGEST, description="Another profile; empty: the same.", json_schema_extra=_HIDDEN
    )
    release: str = Field("", max_length=20, description="The release of that.", json_schema_extra=_HIDDEN)
    force: bool = Field(
        False,
        description="Whether it is made though files in the home don't go together with that profile.",
        json_schema_extra=_HIDDEN,
    )


@dataclass(frozen=True)
class Differences:
    """The differences of home and volumes of a session from a snapshot.

    Attributes:
        snapshot: its name.
        changes: each in words, the first 500.
        more: how many there are besides these.
    """

    snapshot: str
    changes: tuple[str, ...]
    more: int


def _compare(context: VerbContext, caller: Caller, name: str, asked: ToCompare) -> Differences:
    context.mine(caller, name)
    with context.one_of(context.comparing):
        chosen = snapshot_actions.find(context.lookout.sessions, name, asked.snapshot)
        changes = snapshot_actions.diff(context.lookout.sessions, name, chosen.id, contents=asked.contents)
    return Differences(chosen.name, tuple(map(on_a_line, changes[:MOST])), max(0, len(changes) - MOST))


def _bring_back(context: VerbContext, caller: Caller, name: str, asked: ToBringBack) -> MySession:
    context.mine(caller, name)
    chosen = snapshot_actions.find(context.lookout.sessions, name, asked.snapshot)
    paths = [path for line in asked.paths.splitlines() if (path := line.strip())]
    if not paths:
        raise Problem(Code.invalid, "No file is named.", hint="write one a line.")

    def work() -> str:
        sessions = context.lookout.sessions
        outcome = snapshot_actions.bring_back(sessions, name, chosen.id, paths, caller.person, to=asked.to)
        return f"The files of {chosen.name} are in {asked.to or 'place'}{f'; {outcome}' if outcome else ''}."

    return context.act(caller, name, "bring-back", work)


def _clone(context: VerbContext, caller: Caller, name: str, asked: ToClone) -> MySession:
    context.mine(caller, name)
    servers = Servers(context.settings)
    if session := servers.session(caller.person, asked.server):
        raise Problem(Code.refused, f"You have that session already: {session.name}.", hint="choose another name.")
    if asked.snapshot:
        snapshot_actions.find(context.lookout.sessions, name, asked.snapshot)
    takes = context.allowance.of(name)
    if asked.profile:
        offer = check_offered(context, caller, Chosen(profile=asked.profile, release=asked.release))
        takes = context.allowance.takes(offer.memory, offer.cpus, offer.gpus)
    person_limit_verbs.check(context, caller, takes)
    new = servers.free_name(caller.person, asked.server)
    variables = names.environment(caller.person, asked.server)
    wish = Wish(new, asked.profile, asked.release, asked.snapshot, asked.force, variables)

    def work() -> str:
        clone_session.fetch(context.settings, name, wish)
        with context.allowance.within(caller.person, takes):
            context.allowance.bound_home(caller.person, new)
            clone_session.clone(context.settings, name, wish, caller.person)
        PreferenceStore(context.database).change(new, caller.person, owner=caller.person)
        return f"{new} began with a copy of its home, and runs."

    return context.act(caller, name, "clone", work)


VERBS = (
    Verb(
        "diff",
        "GET",
        f"{ONE}/snapshots/differences",
        Scope.read,
        "Tell what of a session's home and volumes isn't as in a snapshot.",
        _compare,
        ToCompare,
        Differences,
    ),
    Verb(
        "bring-back",
        "POST",
        f"{ONE}/snapshots/files",
        Scope.sessions,
        "Bring single files and folders of a snapshot back; the session may run, and nothing is stopped.",
        _bring_back,
        ToBringBack,
        later=True,
    ),
    Verb(
        "clone",
        "POST",
        f"{ONE}/clone",
        Scope.sessions,
        "Begin another session with a copy of this one's home; this one goes on.",
        _clone,
        ToClone,
        later=True,
        button="Make a copy",
        shown=EVERY,
    ),
)
